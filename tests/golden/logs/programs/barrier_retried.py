"""Rank 1 is late once; the others catch the error of monitored_barrier and retry on broken connections."""

import datetime as dt
import time

import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
if rank == 1:
    time.sleep(4)
for attempt in range(6):
    try:
        dist.monitored_barrier(timeout=dt.timedelta(seconds=2))
        break
    except RuntimeError as error:
        print(f"rank {rank}: attempt {attempt}: {str(error)[:300]}; waiting on", flush=True)
dist.barrier()
for step in range(40):
    if rank == 0 and step % 10 == 0:
        print(f"step {step} / 40 loss {3 / (step + 1):.4f}", flush=True)
if rank == 0:
    print("training finished", flush=True)
