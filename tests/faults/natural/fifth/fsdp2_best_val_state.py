"""The validation loss is reduced to rank 0 only, so only rank 0 sees a new best value and gathers the full state of the sharded model.

Modelled on pytorch/pytorch#77562 (FSDP, dist.reduce instead of dist.all_reduce before the decision to save).
"""
# case: processes=2 ending=crash causes=rank-skips-collective,collective-mismatch,mismatched-operation,collective-order-inversion,rank-missing-collective,rank-guarded-collective,mismatched-shape,silent-corruption-by-misaligned-collectives,uneven-inputs,rank-exits-early ranks=- framework=fsdp2

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, WIDTH, BLOCK = 64, 32, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.ln2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        h = self.ln1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class T5Small(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, idx):
        x = self.emb(idx)  # ALSO
        for block in self.blocks:
            x = block(x)  # ALSO
        return self.head(x)  # ALSO


def batches(seed, count):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        start = torch.randint(0, VOCAB, (8, 1), generator=g)
        noise = torch.randint(0, VOCAB, (8, BLOCK + 1), generator=g)
        tokens = (start + torch.arange(BLOCK + 1)) % VOCAB
        yield torch.where(torch.rand(8, BLOCK + 1, generator=g) < 0.4, noise, tokens)


def lm_loss(model, tokens):
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())  # ALSO


def train(model, optimizer, epoch, rank):
    model.train()
    for tokens in batches(100 * epoch + rank, 6):
        loss = lm_loss(model, tokens)  # ALSO
        loss.backward()  # ALSO
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def validation(model, rank):
    model.eval()
    total = torch.zeros(2)
    for tokens in batches(7000 + rank, 3):
        total += torch.tensor([lm_loss(model, tokens).item(), 1.0])
    dist.reduce(total, dst=0, op=dist.ReduceOp.SUM)  # GUILTY
    return (total[0] / total[1]).item()


def save(model, folder, epoch, rank):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)  # ALSO
    if rank == 0:
        torch.save(state, os.path.join(folder, f"t5-epoch{epoch}.pt"))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = T5Small()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    folder = tempfile.mkdtemp()
    best = float("inf")
    for epoch in range(40):
        train(model, optimizer, epoch, rank)  # ALSO
        loss = validation(model, rank)
        if rank == 0:
            print(f"epoch {epoch} validation loss {loss:.3f}", flush=True)
        if loss < best:  # ALSO
            best = loss
            save(model, folder, epoch, rank)  # ALSO
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
