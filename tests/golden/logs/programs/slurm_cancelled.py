"""The Slurm job is cancelled in the middle of training."""

import os
import subprocess
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(500):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0 and step % 10 == 0:
        print(f"step {step} / 500 loss {3 / (step + 1):.4f}", flush=True)
    if dist.get_rank() == 0 and step == 60:
        subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=True)
    time.sleep(0.05)
