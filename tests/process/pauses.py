# ruff: noqa: T201 - a script that prints
"""Rank 0 pauses in the middle of training while rank 1 waits in all_reduce; the argument says how.

retry: time.sleep(10), like a retry with backoff. snapshot: small writes for 12 s. stop: SIGSTOP of
itself (first generation only). sleep: time.sleep(1000) (first generation only).
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast


def write_snapshot(seconds):
    with Path("snapshot.bin").open("wb", buffering=0) as file:
        for _ in range(int(seconds * 2)):
            file.write(b"0" * 512)
            time.sleep(0.5)


def pause(what):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    print("rank 0 pauses", flush=True)
    if what == "retry":
        time.sleep(10)
    elif what == "snapshot":
        write_snapshot(12)
    elif what == "stop" and first:
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "sleep" and first:
        time.sleep(1000)


dist.init_process_group("gloo")
for step in range(40):
    holdfast.step(step)
    if step == 30 and dist.get_rank() == 0:
        pause(sys.argv[1])
    time.sleep(0.02)
    dist.all_reduce(torch.ones(4))
time.sleep(2)
print(f"rank {dist.get_rank()} done", flush=True)
dist.barrier()
dist.destroy_process_group()
