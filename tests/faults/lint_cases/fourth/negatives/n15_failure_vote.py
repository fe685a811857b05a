import argparse
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger(__name__)


class RankFailure(RuntimeError):
    pass


class CollectiveTry:
    """Runs local work on all ranks; raises on all of them if it failed on any."""

    def __init__(self, device):
        self.device = device

    def __call__(self, work, *args):
        result, error = None, None
        try:
            result = work(*args)
        except Exception as caught:
            log.exception("rank %d failed", dist.get_rank())
            error = caught
        failures = torch.tensor(int(error is not None), device=self.device)
        dist.all_reduce(failures)
        if failures.item():
            raise RankFailure(f"{failures.item()} of {dist.get_world_size()} ranks failed") from error
        return result


def read_shard(root):
    paths = sorted(Path(root).glob("*.pt"))[dist.get_rank() :: dist.get_world_size()]
    if not paths:
        raise FileNotFoundError(f"no shard for rank {dist.get_rank()} in {root}")
    parts = [torch.load(path) for path in paths]
    return torch.cat([p["x"] for p in parts]).float(), torch.cat([p["y"] for p in parts]).long()


def common_length(n, device):
    length = torch.tensor(n, device=device)
    dist.all_reduce(length, op=dist.ReduceOp.MIN)
    return int(length)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    x, y = CollectiveTry(device)(read_shard, args.root)
    samples = common_length(len(x), device)
    model = DDP(nn.Linear(x.shape[1], 10).to(device), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for epoch in range(args.epochs):
        order = torch.randperm(len(x), generator=generator)[:samples]
        for rows in order.split(args.batch):
            loss = nn.functional.cross_entropy(model(x[rows].to(device)), y[rows].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()
