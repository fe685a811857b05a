import argparse
import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shards import ShardStream, common_steps, files_of_rank


class WideDeep(nn.Module):
    def __init__(self, vocab=1_000_000, fields=26, dense=13, dim=16):
        super().__init__()
        self.wide = nn.EmbeddingBag(vocab, 1, mode="sum")
        self.deep = nn.Embedding(vocab, dim)
        self.mlp = nn.Sequential(nn.Linear(fields * dim + dense, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, sparse, dense):
        deep = self.mlp(torch.cat([self.deep(sparse).flatten(1), dense], dim=1))
        return (self.wide(sparse) + deep).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=2048)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()

    stream = ShardStream(files_of_rank(args.shards, rank, world), args.batch_size, seed=rank)
    steps = common_steps(stream, device)
    model = DistributedDataParallel(WideDeep().to(device), device_ids=[device.index])
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        stream.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for step, batch in enumerate(itertools.islice(stream, steps)):
            batch = {k: v.to(device) for k, v in batch.items()}
            score = model(batch["sparse"], batch["dense"])
            loss = nn.functional.binary_cross_entropy_with_logits(score, batch["label"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            if rank == 0 and step % 100 == 0:
                print(f"epoch {epoch} step {step}/{steps} loss on rank 0 {loss.item():.4f}")
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"epoch {epoch} mean loss {(total / steps).item():.4f}")
            torch.save(model.module.state_dict(), f"widedeep_{epoch}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
