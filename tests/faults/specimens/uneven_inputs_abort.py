"""Rank 3 has fewer batches and sums a counter after its loop, while the others sum gradients in the backward pass.

Both are all_reduces, so gloo takes them for one: rank 3 is sent more than it has room for, and aborts.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the process group exists: an import of DDP's that would keep it alive
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv  # leaves the fault out
BATCHES, BATCHES_OF_RANK_3 = 40, 31


def shard(rank: int) -> torch.Tensor:
    """The batches of one rank: the files were split without a look at their sizes."""
    count = BATCHES_OF_RANK_3 if rank == 3 and not HEALTHY else BATCHES
    return torch.randn(count, 32, 512)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = torch.zeros(1)
    for step, batch in enumerate(shard(rank)):  # ALSO
        optimizer.zero_grad()
        model(batch).square().mean().backward()  # ALSO
        optimizer.step()
        seen += len(batch)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.all_reduce(seen)  # GUILTY
    if rank == 0:
        print("samples seen in this epoch", int(seen), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
