"""A training loop without a model. Arguments: the pause in a step, the rank that hangs at step 20, and the mode.

Prints `<rank> step <n>` at each step, and `<rank> saves <n>`; a step is an all_reduce.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from holdfast.training.checkpoint import emergency


def report(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


pause_s, frozen, mode = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
ranks = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
if ranks > 1:
    dist.init_process_group("gloo")
emergency.start_listening(interrupt=True)
if mode == "forks":
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGUSR1)  # a data-loader worker has no handler
        report("child lives")
        os._exit(0)
    os.waitpid(child, 0)
for step in range(100_000):
    if emergency.is_due(step):
        report(f"{rank} saves {step}")
        try:
            emergency.exit_rank()
        finally:
            time.sleep(0 if rank else 0.5)  # it hosts the store, and an interpreter exits slower
    report(f"{rank} step {step}")
    if rank == frozen and step == 20:
        if mode == "frozen":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)  # the others wait in the collective
    time.sleep(pause_s * rank)
    if ranks > 1:
        dist.all_reduce(torch.ones(1))
