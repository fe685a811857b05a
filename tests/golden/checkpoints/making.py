"""Provide checkpoints of real frameworks: stored ones, or generated on demand."""

import fcntl
import os
import sys
import tarfile
import tempfile
import time
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

from tests.fork_server import fork_server
from tests.ports import free_port

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent
#: Program -> modules that its fork server imports besides torch, once for all ranks.
_IMPORTS = {"deepspeed_zero": ("deepspeed",)}


def leave():
    """Exit without running destructors: those of torch 2.13 can deadlock.

    A DDP Reducer that holds the last reference to a gloo group joins that group's thread with the
    GIL held, and the thread waits for the GIL to drop its last tensor (observed with py-spy
    --native). DeepSpeed aborts at the same point.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def launched(*command, ranks=1, limit_s=110, environment=None, imports=()):
    """Run ``-m MODULE …`` or ``SCRIPT …`` on ``ranks`` ranks; return their standard output by rank.

    Each rank writes to a file of its own: in a common one, two ranks' lines can run together. The
    ranks are forked from a server that has imported torch and ``imports``; their environment equals
    that under torchrun.

    Raises:
        AssertionError: a rank failed or timed out; then all ranks are killed.
    """
    rendezvous = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    deadline = time.monotonic() + limit_s
    with ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(ranks)]
        errors = files.enter_context(tempfile.TemporaryFile("w+"))
        job = [
            fork_server(*imports).start_program(
                *command,
                environment={
                    **(environment or os.environ),
                    **rendezvous,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                },
                folder=ROOT,
                stdout=output,
                stderr=errors,
            )
            for rank, output in enumerate(outputs)
        ]
        try:
            statuses = [rank.wait(deadline - time.monotonic()) for rank in job]
        except TimeoutError:
            statuses = f"not done after {limit_s} s"
        finally:
            for rank in job:
                rank.kill()
        errors.seek(0)
        assert statuses == [0] * ranks, f"{statuses}: {errors.read()[-4000:]}"
        for output in outputs:
            output.seek(0)
        return "".join(output.read() for output in outputs)


def name_of(program, arguments, ranks):
    """Return the folder name of a generator's checkpoint for these arguments."""
    return "-".join([program, *arguments, str(ranks)]).replace("--", "")


def made(store, program, *arguments, ranks=1):
    """Return the folder of a checkpoint, which is extracted from its archive or generated, once.

    ``store`` is a folder shared by all workers of one test run.
    """
    folder = store / name_of(program, arguments, ranks)
    with (store / f"{program}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive, extracted = archive_of(program), store / f"{program}.extracted"
        if archive.exists() and not extracted.exists():
            with tarfile.open(archive) as stored:
                stored.extractall(store, filter="data")
            extracted.touch()
        if not folder.exists():
            generate(folder, program, *arguments, ranks=ranks)
    return folder


def generate(folder, program, *arguments, ranks=1):
    """Run a generator of this package; ``folder`` exists only if it has succeeded."""
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(exist_ok=True)
    launched(
        "-m",
        f"tests.golden.checkpoints.{program}",
        unfinished,
        *arguments,
        ranks=ranks,
        limit_s=240,
        imports=_IMPORTS.get(program, ()),
    )
    unfinished.rename(folder)


def archive_of(program):
    """Return the path of the archive with the stored checkpoints of a generator."""
    return FOLDER / "stored" / f"{program}.tar.xz"


def source_hash(program):
    """Return the hash of the sources on which a generator's checkpoints depend."""
    return sha256(
        b"".join((FOLDER / f"{name}.py").read_bytes() for name in (program, "model"))
    ).hexdigest()


def shared_store(tmp_path_factory):
    """Return a folder shared by all workers of this test run."""
    base = tmp_path_factory.getbasetemp()
    store = (base.parent if base.name.startswith("popen-gw") else base) / "saved"
    Path(store).mkdir(exist_ok=True)
    return store
