"""Takes steps and fails as its first argument says; keeps a checkpoint of its own of every fifth step in a file.

It obeys adjustments as a script without holdfast.loop does: by reading the file.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast
from holdfast import adjustments
from holdfast.blackbox import Note
from holdfast.runtime import recorder

HOW, LAST = sys.argv[1], 40
RANK, START = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SAVED = Path(sys.argv[2] if len(sys.argv) > 2 else "saved.txt")


def saved_before(wanted):
    """The newest of the steps that were saved, below the one that is asked for."""
    steps = [int(word) for word in SAVED.read_text().split()] if SAVED.exists() else []
    return max((step for step in steps if wanted is None or step < wanted), default=0)


def note(what, step):
    told = {"what": what, "step": step, "first": step, "last": step, "micro_batches": ASKED.micro_batches,
            "exception": "X", "time": time.time()}  # fmt: skip
    recorder.note_json(Note.TROUBLE, told)


def fail(step):
    """The faults, each of which is met at the step that its name says."""
    if HOW == "sample" and step == 13 and not ASKED.skips(step):
        raise ValueError("bad sample")
    if HOW == "idle" and step == (14, 12)[START % 2] and RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "storm" and RANK == 1:
        SAVED.write_text(f"{step}")
        recorder.saved(step, "saved.txt")
        os.kill(os.getpid(), signal.SIGKILL)
    if HOW == "memory" and step == 13 and ASKED.micro_batches < 4:
        note("memory", step)
        raise torch.OutOfMemoryError("CUDA out of memory, says a test")
    if HOW == "nan" and step == 13 and not ASKED.skips(step):
        note("nan", step)
        raise FloatingPointError("the loss is nan")
    if HOW == "hang" and step == 13 + START and START < 2 and RANK == 1:
        time.sleep(1000)


ASKED = adjustments.read(Path(os.environ["HOLDFAST_ADJUSTMENTS"]) if "HOLDFAST_ADJUSTMENTS" in os.environ else None)
dist.init_process_group("gloo")
begin = saved_before(ASKED.resume_before)
dist.barrier()
if begin:
    recorder.saved(begin, "saved.txt", loaded=True)
for step in range(begin + 1, LAST + 1):
    holdfast.step(step)
    fail(step)
    dist.all_reduce(torch.ones(1))
    if step % 5 == 0:
        if RANK == 0:
            SAVED.write_text(f"{SAVED.read_text() if SAVED.exists() else ''} {step}")
        dist.barrier()
        recorder.saved(step, "saved.txt")
sys.stdout.write(f"done from {begin} in {ASKED.micro_batches} pieces\n")
sys.stdout.flush()
dist.destroy_process_group()
