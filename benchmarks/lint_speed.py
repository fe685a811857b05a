"""Speed of ``holdfast lint`` on a large program, cold and kept, and on one file, next to ruff and mypy.

``python -m benchmarks.lint_speed FOLDER`` measures on what is there; without FOLDER a program of 300,000 lines is made
up, in which one file in ten touches collectives; what touches none is measured on Python's own library. Printed are
wall time, processor time (of children too) and peak memory of the largest process; on a loaded machine the processor's
time is the one to read. mypy, which checks types, is there for the order of magnitude, and has one folder of thirty.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(sys.executable).parent
FOLDERS, FILES, FUNCTIONS = 30, 20, 20
#: One function of a file that touches nothing, 25 lines.
_PLAIN = '''
def shape_{at}(rows, width={at}, *, depth=3):
    """Cut rows into blocks of a width, and sum what is in them."""
    blocks = []
    for start in range(0, len(rows), width + 1):
        block = rows[start : start + width + 1]
        if not block:
            continue
        total = 0.0
        for value in block:
            if isinstance(value, str):
                total += len(value)
            elif value is None:
                total -= 1
            else:
                total += value * depth
        blocks.append({{"start": start, "total": total, "size": len(block)}})
    best = max(blocks, key=lambda each: each["total"], default=None)
    names = [f"{{each['start']}}:{{each['size']}}" for each in blocks if each["size"] > depth]
    if best is None:
        return names, {{}}
    scale = best["total"] or 1.0
    return names, {{each["start"]: each["total"] / scale for each in blocks}}

'''
#: One class of a file that touches collectives, 30 lines.
_LOUD = """
class Trainer{at}:
    def __init__(self, model, loader):
        self.model = torch.nn.parallel.DistributedDataParallel(model)
        self.loader = loader
        self.is_main = dist.get_rank() == 0
        self.losses = []

    def reduce(self, value):
        total = torch.tensor([float(value)])
        dist.all_reduce(total)
        return total.item() / dist.get_world_size()

    def evaluate(self, batches):
        total = 0.0
        for batch in batches:
            total += self.model(batch).mean().item()
        return self.reduce(total)

    def epoch(self, number):
        for batch in self.loader:
            loss = self.model(batch).mean()
            loss.backward()
            self.losses.append(loss.item())
        mean = self.evaluate([])
        if self.is_main:
            print(number, mean, len(self.losses))
        dist.barrier()
        return mean

"""


def make(folder: Path) -> Path:
    """A program of packages in which one file in ten touches collectives; its first folder has none that does."""
    for package in range(FOLDERS):
        home = folder / f"part_{package}"
        home.mkdir(parents=True)
        (home / "__init__.py").write_text("")
        for number in range(FILES):
            loud = package > 0 and number % 10 == 9
            head = "import torch\nimport torch.distributed as dist\n\n" if loud else "import math\n\n"
            body = _LOUD if loud else _PLAIN
            text = head + "\n".join(body.format(at=at) for at in range(FUNCTIONS))
            (home / f"module_{number}.py").write_text(text)
    return folder


def library(folder: Path) -> Path:
    """A copy of what comes with Python, without what was installed beside it, and without tests of broken syntax."""
    passed = shutil.ignore_patterns("site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3")
    shutil.copytree(sysconfig.get_path("stdlib"), folder, ignore=passed)
    return folder


@dataclass(frozen=True)
class Taken:
    """Wall and processor time in seconds, and peak memory in MiB, of one command."""

    wall: float
    processor: float
    memory: float


def run(command: Sequence[str | Path], cache: Path) -> Taken:
    """Run a command to its end, whatever it says."""
    environment = {**os.environ, "HOLDFAST_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs
    began = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise RuntimeError(f"{command[0]} failed with status {process.returncode}")
    return Taken(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def lines_of(folder: Path) -> int:
    """How many lines of Python are there."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))


def show(name: str, taken: Taken, lines: int = 0) -> None:
    """One line of the table."""
    rate = f"   {lines / taken.processor:10,.0f} lines a second and core" if lines else ""
    print(f"{name:34} {taken.wall:7.2f} s   {taken.processor:7.2f} s of processor   {taken.memory:5.0f} MiB{rate}")


def main(where: str = "") -> None:
    """Print the figures, ruff's and mypy's in the same run."""
    with tempfile.TemporaryDirectory() as made:
        cache = Path(made, "cache")
        folder = Path(where) if where else make(Path(made, "program"))
        count = lines_of(folder)
        print(f"{count:,} lines")
        lint = (HERE / "holdfast", "lint", folder)
        run((HERE / "holdfast", "lint", "--help"), cache)
        show("holdfast lint, nothing kept", run((*lint, "--no-cache"), cache), count)
        run(lint, cache)
        show("holdfast lint, kept, as it was", run(lint, cache), count)
        if shutil.which(HERE / "ruff"):
            show("ruff check", run((HERE / "ruff", "check", "--no-cache", "--isolated", folder), cache), count)
        single = max(folder.rglob("*.py"), key=lambda path: path.stat().st_size)
        show(
            f"one file, {lines_of_file(single):,} lines", run((HERE / "holdfast", "lint", "--no-cache", single), cache)
        )
        if where:
            return
        plain = library(Path(made, "library"))
        count = lines_of(plain)
        show("Python's library, no collectives", run((*lint[:2], "--no-cache", plain), cache), count)
        show("ruff check", run((HERE / "ruff", "check", "--no-cache", "--isolated", plain), cache), count)
        single = folder / "part_0" / "module_0.py"
        run(lint, cache)
        single.write_text(single.read_text() + "\n")
        show("one file changed", run(lint, cache))
        if shutil.which(HERE / "mypy"):
            command = (HERE / "mypy", "--cache-dir", os.devnull, "--ignore-missing-imports", folder / "part_1")
            show("mypy, one folder", run(command, cache), lines_of(folder / "part_1"))
    print("targets: 300,000 lines in 10 s cold, 1 s kept, 1 GiB; one file 0.15 s; 150,000 lines a second without any")


def lines_of_file(path: Path) -> int:
    """How many lines it has."""
    return path.read_bytes().count(b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
