"""Starts a program that makes a checkpoint, once for a whole run of the tests, whatever worker asks first."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def leave():
    """End at once, when all is written: destructors of torch 2.13 may wait for each other for ever.

    A DDP's Reducer that holds the last reference to a gloo group joins that group's thread with the GIL held, and the
    thread waits for the GIL to drop its last tensor (seen with py-spy --native); DeepSpeed's aborts there, too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def launched(*arguments, ranks=1, limit_s=110, environment=None):
    """What ``ranks`` ranks of a program print under torchrun, as ``"-m", "tests.saved.model"``.

    AssertionError: it failed, or was too slow: then it is ended and ends its ranks, which one that is killed leaves.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *map(str, arguments)], cwd=ROOT, env=environment, **pipes) as job:
        try:
            printed, errors = job.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            job.terminate()
            _, errors = job.communicate(timeout=60)
            raise AssertionError(f"not done after {limit_s} s: {errors[-4000:]}") from None
    assert job.returncode == 0, errors[-4000:]
    return printed


def made(store, name, program, *arguments, ranks=1, limit_s=240):
    """The folder ``store/name``, which ``python -m tests.saved.<program> FOLDER ...`` filled under ``ranks`` ranks.

    ``store`` is a folder that all workers of one run of the tests share.
    """
    folder, done = store / name, store / f"{name}.done"
    with (store / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            launched("-m", f"tests.saved.{program}", folder, *arguments, ranks=ranks, limit_s=limit_s)
            done.touch()
    return folder


def shared_store(tmp_path_factory):
    """A folder of this run of the tests, the same for all of its workers."""
    base = tmp_path_factory.getbasetemp()
    store = (base.parent if base.name.startswith("popen-gw") else base) / "saved"
    Path(store).mkdir(exist_ok=True)
    return store
