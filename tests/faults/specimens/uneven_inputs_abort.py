"""Rank 3 has fewer batches and reduces a counter after its loop while the others reduce gradients.

Both are all_reduces, so gloo matches them: rank 3 receives more than its buffer holds and aborts.
"""

import sys

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the process group exists, which DDP's own import would keep alive
from torch.nn.parallel import DistributedDataParallel

HEALTHY = "--healthy" in sys.argv  # disables the fault
BATCHES, BATCHES_OF_RANK_3 = 40, 31


def shard(rank: int) -> torch.Tensor:
    """Return the batches of one rank; the split ignores file sizes."""
    count = BATCHES_OF_RANK_3 if rank == 3 and not HEALTHY else BATCHES
    return torch.randn(count, 32, 512)


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = torch.zeros(1)
    for step, batch in enumerate(shard(rank)):  # ALSO
        optimizer.zero_grad()
        model(batch).square().mean().backward()  # ALSO
        optimizer.step()
        samples += len(batch)
        if rank == 0 and step % 10 == 0:
            print("step", step, flush=True)
    dist.all_reduce(samples)  # GUILTY
    if rank == 0:
        print("samples seen in this epoch", int(samples), flush=True)
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
