"""Run a function on real ranks over gloo, and return its result or exception on each."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.fork_server import fork_server

Program = Callable[..., Any]
ROOT = Path(__file__).parents[4]


def run(
    size: int,
    program: Program,
    folder: Path,
    *arguments: object,
    limit_s: float = 60,
    imports: tuple[str, ...] = (),
) -> list[Any]:
    """Return the result or exception of ``program(rank, *arguments)`` on each rank.

    None for a rank that exited. The function is imported by name, so it must be at module level.
    The fork server has the modules ``imports``.
    """
    file = Path(program.__code__.co_filename).relative_to(ROOT)
    module = ".".join(file.with_suffix("").parts)  # pytest imports it under another name
    (folder / "arguments").write_bytes(pickle.dumps((module, program.__qualname__, arguments)))
    ranks = [fork_server(*imports).start(main, rank, size, folder) for rank in range(size)]
    try:
        assert [rank.wait(limit_s) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(limit_s)
    files = [folder / f"result{rank}" for rank in range(size)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def main(rank: int, size: int, folder: Path) -> None:
    """Run one rank."""
    torch.set_num_threads(1)
    module, name, arguments = pickle.loads((folder / "arguments").read_bytes())
    program = getattr(__import__(module, fromlist=[name]), name)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    try:
        result = program(rank, *arguments)
    except Exception as error:  # noqa: BLE001 - returned to the test
        result = error
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    store.set(f"done{rank}", "")
    # A rank that exits closes the others' connections; one of them may have exited before.
    with suppress(RuntimeError):
        store.wait([f"done{other}" for other in range(size)], timedelta(seconds=5))
    os._exit(0)  # gloo aborts a process that exits with a pending call
