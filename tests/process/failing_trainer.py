"""Train with the fault in the first argument; the checkpoint is the number of every fifth step.

Reads the adjustments file as a script without holdfast.loop does.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast
from holdfast import recorder
from holdfast.core import adjustments
from holdfast.core.trace_file import TraceNote

FAULT, LAST = sys.argv[1], 40
RANK, START = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SAVED = Path(sys.argv[2] if len(sys.argv) > 2 else "saved.txt")


def saved_before(limit):
    """Return the newest saved step before ``limit``."""
    steps = [int(word) for word in SAVED.read_text().split()] if SAVED.exists() else []
    return max((step for step in steps if limit is None or step < limit), default=0)


def record_problem(what, step):
    problem = {
        "what": what,
        "step": step,
        "first": step,
        "last": step,
        "micro_batches": ADJUSTMENTS.micro_batches,
        "exception": "X",
        "time": time.time(),
    }
    recorder.record_note(TraceNote.TROUBLE, problem)


def fail(step):
    """Inject the fault at its step."""
    if FAULT == "sample" and step == 13 and not ADJUSTMENTS.skips(step):
        raise ValueError("bad sample")
    if FAULT == "idle" and step == (14, 12)[START % 2] and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "storm" and RANK == 1:
        SAVED.write_text(f"{step}")
        recorder.record_saved_step(step, "saved.txt")
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "memory" and step == 13 and ADJUSTMENTS.micro_batches < 4:
        record_problem("memory", step)
        raise torch.OutOfMemoryError("CUDA out of memory (injected)")
    if FAULT == "nan" and step == 13 and not ADJUSTMENTS.skips(step):
        record_problem("nan", step)
        raise FloatingPointError("the loss is nan")
    if FAULT == "hang" and step == 13 + START and START < 2 and RANK == 1:
        time.sleep(1000)


ADJUSTMENTS = adjustments.read_adjustments(
    Path(os.environ["HOLDFAST_ADJUSTMENTS"]) if "HOLDFAST_ADJUSTMENTS" in os.environ else None
)
dist.init_process_group("gloo")
resumed_from = saved_before(ADJUSTMENTS.resume_before)
dist.barrier()
if resumed_from:
    recorder.record_saved_step(resumed_from, "saved.txt", loaded=True)
for step in range(resumed_from + 1, LAST + 1):
    holdfast.step(step)
    fail(step)
    dist.all_reduce(torch.ones(1))
    if step % 5 == 0:
        if RANK == 0:
            SAVED.write_text(f"{SAVED.read_text() if SAVED.exists() else ''} {step}")
        dist.barrier()
        recorder.record_saved_step(step, "saved.txt")
sys.stdout.write(f"done from {resumed_from} in {ADJUSTMENTS.micro_batches} micro-batches\n")
sys.stdout.flush()
dist.destroy_process_group()
