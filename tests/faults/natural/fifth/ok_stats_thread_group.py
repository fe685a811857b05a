"""Healthy: a thread of every rank reduces statistics over a group of its own, while the main thread trains with pauses and reduces over the default group.

In the style of throughput monitors with a separate gloo group; the threads agree on the last round.
"""
# case: processes=3 ending=well causes=- ranks=- framework=torch.distributed limit_s=120

import threading
import time

import torch
import torch.distributed as dist
from torch import nn


class Throughput(threading.Thread):
    def __init__(self, group, period=1.5):
        super().__init__()
        self.group, self.period = group, period
        self.samples, self.done = 0, False
        self.history = []

    def run(self):
        while True:
            time.sleep(self.period)
            report = torch.tensor([float(self.samples), float(self.done)])
            dist.all_reduce(report, group=self.group)
            self.history.append(report[0].item())
            if report[1] == dist.get_world_size(self.group):
                return


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    monitor = Throughput(dist.new_group(list(range(world))))
    monitor.start()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 40), nn.GELU(), nn.Linear(40, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(rank)
    for step in range(60):
        x = torch.randn(16, 10, generator=g)
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        monitor.samples += len(x)
        if step in (20, 45):
            time.sleep(5 + 2 * rank)
    monitor.done = True
    time.sleep(4 if rank == 2 else 0)
    monitor.join()
    if rank == 0:
        print(f"{len(monitor.history)} reports, {monitor.history[-1]:.0f} samples", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
