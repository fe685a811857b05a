"""Healthy: torch.profiler records a few steps, and its trace handler exports and compresses the trace for about 12 s on each rank.

In the style of the profiling examples of PyTorch and torchtitan; the steps after the export are fast again.
"""
# case: processes=2 ending=well causes=- ranks=- framework=ddp limit_s=120

import gzip
import os
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function, schedule

FOLDER = tempfile.mkdtemp(prefix="trace-")


def trace_handler(profiler):
    """Export the trace, compress it, and print the most expensive operators on rank 0."""
    rank = dist.get_rank()
    path = os.path.join(FOLDER, f"rank{rank}-step{profiler.step_num}.json")
    profiler.export_chrome_trace(path)
    with open(path, "rb") as source, gzip.open(path + ".gz", "wb", compresslevel=9) as target:
        while chunk := source.read(1 << 16):
            target.write(chunk)
    time.sleep(12 - 2 * rank)  # the trace folder is on a slow share
    os.unlink(path)
    if rank == 0:
        print(profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=5), flush=True)


class Mixer(nn.Module):
    def __init__(self, tokens=16, dim=32):
        super().__init__()
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.within = nn.Sequential(nn.Linear(dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        return self.head((x + self.within(x)).mean(1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Mixer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    plan = schedule(wait=10, warmup=2, active=4, repeat=2)
    with profile(activities=[ProfilerActivity.CPU], schedule=plan, on_trace_ready=trace_handler, record_shapes=True) as profiler:
        for step in range(45):
            with record_function("forward_and_loss"):
                loss = nn.functional.cross_entropy(model(torch.randn(8, 16, 32)), torch.randint(0, 10, (8,)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profiler.step()
            if rank == 0 and step % 5 == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
