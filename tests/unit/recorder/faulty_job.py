"""A healthy job for fault injection: DDP steps with an all-reduce each, and a barrier."""

import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        time.sleep(0.01)
    dist.barrier()
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
