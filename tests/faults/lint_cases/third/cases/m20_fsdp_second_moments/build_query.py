import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from optim_state import save_second_moments_as_optimizer_pt


class LM(nn.Module):
    def __init__(self, vocab=8192, dim=256, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(dim, 4, batch_first=True) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build_model(mesh):
    torch.manual_seed(0)
    model = LM().cuda()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def accumulate(model, optimizer, loader):
    for step, (ids,) in enumerate(loader):
        ids = ids.cuda()
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run_path", default="runs/query")
    parser.add_argument("--batch_size", type=int, default=8)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    global_rank = dist.get_rank()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = build_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.95, 0.99))
    data = TensorDataset(torch.randint(0, 8192, (4096, 129)))
    sampler = DistributedSampler(data)
    sampler.set_epoch(0)
    accumulate(model, optimizer, DataLoader(data, args.batch_size, sampler=sampler))
    if global_rank == 0:
        save_second_moments_as_optimizer_pt(model, optimizer, args.run_path)
        print(f"optimizer state written to {args.run_path}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
