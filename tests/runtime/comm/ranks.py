"""Starts real ranks over gloo for a test: each runs one function and hands back what it returned or raised."""

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

from tests.runtime.comm.nursery import nursery

Program = Callable[..., Any]
ROOT = Path(__file__).parents[3]


def run(size: int, program: Program, folder: Path, *arguments: object, limit_s: float = 60) -> list[Any]:
    """What ``program(rank, *arguments)`` gave on each rank: an exception as itself, None of one that left.

    The function is found by its module and name, so that it has to stand at the top of a file.
    """
    file = Path(program.__code__.co_filename).relative_to(ROOT)
    module = ".".join(file.with_suffix("").parts)  # pytest calls it by another name
    (folder / "arguments").write_bytes(pickle.dumps((module, program.__qualname__, arguments)))
    ranks = [nursery().start(main, rank, size, folder) for rank in range(size)]
    try:
        assert [rank.wait(limit_s) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(limit_s)
    files = [folder / f"result{rank}" for rank in range(size)]
    return [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]


def main(rank: int, size: int, folder: Path) -> None:
    """One rank."""
    torch.set_num_threads(1)
    module, name, arguments = pickle.loads((folder / "arguments").read_bytes())
    program = getattr(__import__(module, fromlist=[name]), name)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    try:
        result = program(rank, *arguments)
    except Exception as error:  # noqa: BLE001 - the test looks at it
        result = error
    (folder / f"result{rank}").write_bytes(pickle.dumps(result))
    store.set(f"done{rank}", "")
    with suppress(RuntimeError):  # a rank that leaves breaks the others' connections; one of them may have left
        store.wait([f"done{other}" for other in range(size)], timedelta(seconds=5))
    os._exit(0)  # gloo aborts a process that ends with a call under way
