"""A retry repeats the whole reporting function on one rank, including the collective that already succeeded before the upload failed.

In the style of an evaluation loop that uploads per-rank reports to an experiment tracker.
"""
# case: processes=3 ending=hang causes=collective-mismatch,mismatched-operation,mismatched-shape,rank-missing-collective ranks=1 framework=ddp

import argparse
import functools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def retry(times, pause):
    def decorate(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            for attempt in range(times):
                try:
                    return function(*args, **kwargs)  # ALSO
                except ConnectionError as error:
                    print(f"{function.__name__}: {error}, attempt {attempt + 1}", flush=True)
                    time.sleep(pause)
            raise RuntimeError(f"{function.__name__} failed {times} times")

        return wrapped

    return decorate


class Tracker:
    """A client of the tracking service; the connection of one rank is lost once."""

    def __init__(self, rank):
        self.rank, self.sent, self.broken = rank, [], rank == 1

    def upload(self, record):
        if self.broken and len(self.sent) == 3:
            self.broken = False
            raise ConnectionError("connection reset by peer")
        self.sent.append(record)


class Evaluator:
    def __init__(self, model, tracker):
        self.model, self.tracker = model, tracker

    @retry(times=3, pause=0.2)
    def report(self, epoch, x, y):
        with torch.no_grad():
            logits = self.model.module(x)
        counts = torch.stack([(logits.argmax(1) == y).sum(), torch.tensor(len(y))]).double()
        dist.all_reduce(counts)  # GUILTY
        accuracy = (counts[0] / counts[1]).item()
        self.tracker.upload({"epoch": epoch, "accuracy": accuracy})
        return accuracy


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.BatchNorm1d(48), nn.Linear(48, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    evaluator = Evaluator(model, Tracker(rank))
    x = torch.randn(640, 12)
    y = x[:, :3].argmax(1)
    for epoch in range(args.epochs):
        for i in range(0, 512, 32):
            loss = nn.functional.cross_entropy(model(x[i : i + 32]), y[i : i + 32])  # ALSO
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = evaluator.report(epoch, x[512:], y[512:])  # ALSO
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} accuracy {accuracy:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
