"""A watchdog of the script's own calls os._exit(3) from its SIGALRM handler on the rank with a slow sample."""
# case: processes=3 ending=crash causes=exit-nonzero ranks=2 framework=ddp

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEP_LIMIT_S = 6


def on_alarm(signum, frame):
    sys.stdout.flush()
    os._exit(3)  # GUILTY


class StepTimer:
    """Ends the process if preparing a batch takes too long: better to requeue than to burn hours."""

    def __enter__(self):
        signal.signal(signal.SIGALRM, on_alarm)
        signal.alarm(STEP_LIMIT_S)

    def __exit__(self, *exc):
        signal.alarm(0)


class VideoDataset(torch.utils.data.IterableDataset):
    def __init__(self, rank, n=40):
        self.rank, self.n = rank, n

    def decode(self, i):
        if self.rank == 2 and i == 15:  # a clip of two hours
            time.sleep(20)  # ALSO
        return torch.randn(3, 8, 8)

    def __iter__(self):
        for i in range(self.n):
            yield self.decode(i), i % 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4))
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(torch.utils.data.DataLoader(VideoDataset(rank), batch_size=2))
    for step in range(20):
        with StepTimer():
            clips, labels = next(batches)
        loss = nn.functional.cross_entropy(model(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
