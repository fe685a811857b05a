"""Each rank compares its own validation loss with its best one; those that improved gather the full state dict, one rank goes on to the next epoch.

In the style of an FSDP2 example (fully_shard per block, full state dict for the best model). Modelled on pytorch/pytorch#77562.
"""
# case: processes=3 ending=crash causes=rank-skips-collective,collective-mismatch,mismatched-shape,mismatched-operation,rank-missing-collective ranks=2 framework=fsdp2

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Classifier(nn.Module):
    def __init__(self, d=48, layers=3, classes=5):
        super().__init__()
        self.embed = nn.Linear(24, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make_split(seed, n, noisy=False):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 24, generator=g)
    y = (x[:, :5] * 2).argmax(1)
    if noisy:  # this part of the validation set was labelled by hand, badly
        y = torch.randint(0, 5, (n,), generator=g)
    return x, y


class BestModel:
    def __init__(self, folder):
        self.path, self.loss = os.path.join(folder, "best.pt"), float("inf")

    def update(self, model, loss):
        if loss >= self.loss:
            return False  # ALSO
        self.loss = loss
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_model_state_dict(model, options=options)  # GUILTY
        if dist.get_rank() == 0:
            torch.save(state, self.path)
        return True


def train_epoch(model, optimizer, x, y, batch_size):
    model.train()
    for i in range(0, len(x), batch_size):
        logits = model(x[i : i + batch_size])  # ALSO
        loss = F.cross_entropy(logits, y[i : i + batch_size])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def validate(model, x, y):
    model.eval()
    return F.cross_entropy(model(x), y).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--output", default=".")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = Classifier()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    x, y = make_split(10 + rank, 256)
    vx, vy = make_split(50 + rank, 96, noisy=rank == world - 1)
    best = BestModel(args.output)
    for epoch in range(args.epochs):
        loss = train_epoch(model, optimizer, x, y, 32)
        val_loss = validate(model, vx, vy)
        saved = best.update(model, val_loss)
        if rank == 0:
            print(f"epoch {epoch}: train {loss:.3f} val {val_loss:.3f}{' (saved)' if saved else ''}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
