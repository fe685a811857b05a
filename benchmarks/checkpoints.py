"""Checkpoint benchmark: how long training is blocked; verified save and load speed.

Peers: `torch.save`, `torch.distributed.checkpoint.async_save`, `dd` with fsync, and
`torch.load(mmap=True)` with `load_state_dict`: one process, the same 1 GB of weights, interleaved,
medians. holdfast's loads check the hash of every byte first, then copy the tensors from the pages
that were hashed (the old state is kept until then), and every save is synced; `torch.save`
is not, and is timed once more with an fsync. What blocks training in an asynchronous save is one
memory copy: a plain copy of as many bytes shows its share.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import holdfast

_WIDTH = 2048
_MIB = 1 << 20


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024, help="size of the state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    options = parser.parse_args(arguments if arguments is not None else [])
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _CheckpointBenchmark(Path(folder), options.mib).run(options.rounds)


class _CheckpointBenchmark:
    """One state, and all measured operations on it."""

    def __init__(self, folder: Path, mib: int) -> None:
        self.folder = folder
        layers = mib * _MIB // (4 * _WIDTH * _WIDTH)
        self.model = nn.ModuleList(
            [nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(max(layers, 1))]
        )
        self.size = sum(parameter.nbytes for parameter in self.model.parameters())
        self.bytes, self.copy = (
            torch.ones(self.size, dtype=torch.uint8),
            torch.ones(self.size, dtype=torch.uint8),
        )
        self.checkpoint = holdfast.Checkpoint(folder / "holdfast", model=self.model)
        self.step = 0
        self.times: dict[str, list[float]] = {}

    def run(self, rounds: int) -> None:
        for number in range(rounds + 1):
            self._round()
            if number == 0:
                self.times.clear()  # the first round allocates buffers and warms caches
        self._print()

    def _timed(self, name: str, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = act()
        self.times.setdefault(name, []).append(time.perf_counter() - began)
        return result

    def _round(self) -> None:
        self._clear()
        self._timed("dd", self._dd)
        self._timed("save", lambda: self._save(asynchronous=False))
        self._clear()
        self._timed("torch.save", lambda: torch.save(self._state(), self.folder / "torch"))
        self._timed("torch.save, fsync", self._synced)
        self._timed("copy in memory", lambda: self.copy.copy_(self.bytes))
        self._timed("async blocked", lambda: self._save(asynchronous=True))
        self.checkpoint.wait()
        pending = self._timed(
            "dcp.async_save blocked",
            lambda: dcp.async_save(self._state(), checkpoint_id=self.folder / "dcp"),
        )
        pending.result()
        self._timed("torch.load", self._torch_load)
        self._timed("load", self.checkpoint.load)
        self._drop_page_cache()
        self._timed("torch.load, from disk", self._torch_load)
        self._drop_page_cache()
        self._timed("load, from disk", self.checkpoint.load)

    def _drop_page_cache(self) -> None:
        """Remove the files from the page cache, as on a host that did not write them."""
        os.sync()
        for path in filter(Path.is_file, self.folder.rglob("*")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def _clear(self) -> None:
        for each in self.folder.iterdir():
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink()
        subprocess.run(["sync"], check=True)

    def _save(self, *, asynchronous: bool) -> None:
        self.step += 1
        self.checkpoint.save(self.step, asynchronous=asynchronous)

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def _synced(self) -> None:
        with (self.folder / "torch").open("wb") as file:
            torch.save(self._state(), file)
            file.flush()
            os.fsync(file.fileno())

    def _torch_load(self) -> None:
        self.model.load_state_dict(torch.load(self.folder / "torch", mmap=True)["model"])

    def _dd(self) -> None:
        target = f"of={self.folder / 'dd'}"
        command = [
            "dd",
            "if=/dev/zero",
            target,
            "bs=16M",
            f"count={self.size // (16 * _MIB)}",
            "conv=fsync",
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    def _print(self) -> None:
        medians = {name: statistics.median(times) for name, times in self.times.items()}
        gb = self.size / 1e9
        print(
            f"state of {gb:.2f} GB, one process, {torch.get_num_threads()} threads, medians of "
            f"{len(self.times['dd'])}"
        )
        for name, seconds in medians.items():
            print(f"  {name:24} {seconds * 1e3:9.1f} ms  {gb / seconds:6.2f} GB/s")
        blocked = medians["async blocked"]
        print(
            f"blocked / torch.save            {blocked / medians['torch.save']:.3f}   (target: at "
            "most 0.10)"
        )
        print(f"blocked / torch.save, fsync     {blocked / medians['torch.save, fsync']:.3f}")
        print(f"blocked / copy in memory        {blocked / medians['copy in memory']:.3f}")
        print(
            f"blocked / dcp.async_save        {blocked / medians['dcp.async_save blocked']:.3f}   "
            "(target: at most 0.5)"
        )
        print(
            f"verified save / dd with fsync   {medians['dd'] / medians['save']:.3f}   (target: at "
            "least 0.8)"
        )
        print(
            f"load / torch.load(mmap=True)    {medians['torch.load'] / medians['load']:.3f}   "
            "(target: at least 0.9)"
        )
        from_disk = medians["torch.load, from disk"] / medians["load, from disk"]
        print(f"the same, from disk             {from_disk:.3f}   (target: at least 0.9)")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
