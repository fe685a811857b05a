"""The second host fails in the middle of training: its agent and ranks are killed at once."""

import os
import signal
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0 and step % 10 == 0:
        print(f"step {step} / 100 loss {3 / (step + 1):.4f}", flush=True)
    if os.environ["GROUP_RANK"] == "1" and step == 40:
        if os.environ["LOCAL_RANK"] == "0":
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
