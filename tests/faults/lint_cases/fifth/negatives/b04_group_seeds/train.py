import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from layout import Layout, job_seed
from tensor_parallel import ParallelMLP


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    layout = Layout(args.tp)
    seed = job_seed(args.seed)

    torch.manual_seed(seed)
    model = nn.Sequential(*(ParallelMLP(512, 2048, layout, seed + i) for i in range(6))).cuda()
    generator = torch.Generator().manual_seed(0)
    dataset = TensorDataset(torch.randn(20_000, 512, generator=generator))
    sampler = DistributedSampler(
        dataset, num_replicas=layout.dp_size, rank=layout.dp_rank, seed=seed, drop_last=True
    )
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.cuda.manual_seed(seed + 1 + layout.dp_rank)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            x = x.cuda()
            loss = (model(x) - x.flip(-1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=layout.dp_group)
            optimizer.step()
        shown = loss.detach()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG, group=layout.dp_group)
        if layout.dp_rank == 0:
            torch.save(model.state_dict(), f"mlp-tp{layout.tp_rank}.pt")
            if layout.tp_rank == 0:
                print(f"epoch {epoch} loss {shown.item():.5f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
