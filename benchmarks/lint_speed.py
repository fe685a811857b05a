"""Speed of ``holdfast lint`` on a large program and on one file, next to ruff and mypy.

``python -m benchmarks.lint_speed FOLDER`` measures the program in FOLDER, with and without cache.
Without FOLDER, a program of 300,000 lines is generated in which one file in ten uses collectives;
code without any is measured on Python's standard library. Printed are wall time, CPU time
(including children) and peak memory of the largest process; on a loaded machine, compare CPU times.
mypy, which checks types, is there for the order of magnitude and gets one folder of thirty.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import ProcessCost, measure_process

HERE = Path(sys.executable).parent
FOLDERS, FILES, FUNCTIONS, SCRIPTS = 30, 20, 20, 3
#: One function of a file without collectives, 25 lines.
_QUIET_FUNCTION = '''
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
#: One class of a file with collectives, 30 lines.
_COLLECTIVE_CLASS = """
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


def generate_program(folder: Path) -> Path:
    """Write packages in which one file in ten uses collectives, except in the first package.

    Scripts use the second one.
    """
    for package in range(FOLDERS):
        home = folder / f"part_{package}"
        home.mkdir(parents=True)
        (home / "__init__.py").write_text("")
        for number in range(FILES):
            has_collectives = package > 0 and number % 10 == 9
            head = (
                "import torch\nimport torch.distributed as dist\n\n"
                if has_collectives
                else "import math\n\n"
            )
            body = _COLLECTIVE_CLASS if has_collectives else _QUIET_FUNCTION
            text = head + "\n".join(body.format(at=at) for at in range(FUNCTIONS))
            (home / f"module_{number}.py").write_text(text)
    for number in range(SCRIPTS):
        script = (
            f"from part_1.module_9 import Trainer{number}\n\nTrainer{number}(None, []).epoch(0)\n"
        )
        (folder / f"train_{number}.py").write_text(script)
    return folder


def copy_standard_library(folder: Path) -> Path:
    """Copy Python's standard library without installed packages and tests with invalid syntax."""
    ignored = shutil.ignore_patterns(
        "site-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3"
    )
    shutil.copytree(sysconfig.get_path("stdlib"), folder, ignore=ignored)
    return folder


def run(command: Sequence[str | Path], cache: Path) -> ProcessCost:
    """Run a command with this cache folder and measure it; exit status 1 means findings."""
    environment = {**os.environ, "HOLDFAST_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles what it installs
    return measure_process(command, environment, accepted=(0, 1))


def count_lines(folder: Path) -> int:
    """Return the number of lines of Python in a folder."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))


def print_row(name: str, result: ProcessCost, lines: int = 0) -> None:
    """Print one line of the table."""
    rate = f"   {lines / result.cpu_s:10,.0f} lines per CPU second" if lines else ""
    print(
        f"{name:34} {result.wall_s:7.2f} s   {result.cpu_s:7.2f} s CPU   {result.memory_mib:5.0f} "
        f"MiB{rate}"
    )


def main(where: str = "") -> None:
    """Print the figures, including those of ruff and mypy in the same run."""
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch, "cache")
        folder = Path(where) if where else generate_program(Path(scratch, "program"))
        count = count_lines(folder)
        print(f"{count:,} lines")
        lint = (HERE / "holdfast", "lint", folder)
        run((HERE / "holdfast", "lint", "--help"), cache)
        print_row("holdfast lint, no cache", run((*lint, "--no-cache"), cache), count)
        run(lint, cache)
        print_row("holdfast lint, cached", run(lint, cache), count)
        if shutil.which(HERE / "ruff"):
            print_row(
                "ruff check",
                run((HERE / "ruff", "check", "--no-cache", "--isolated", folder), cache),
                count,
            )
        single = max(folder.rglob("*.py"), key=lambda path: path.stat().st_size)
        print_row(
            f"one file, {count_file_lines(single):,} lines",
            run((HERE / "holdfast", "lint", "--no-cache", single), cache),
        )
        if where:
            return
        plain = copy_standard_library(Path(scratch, "library"))
        count = count_lines(plain)
        print_row(
            "standard library, no collectives", run((*lint[:2], "--no-cache", plain), cache), count
        )
        print_row(
            "ruff check",
            run((HERE / "ruff", "check", "--no-cache", "--isolated", plain), cache),
            count,
        )
        run(lint, cache)
        for changed in ("part_0/module_0.py", "train_0.py", "part_1/module_9.py"):
            path = folder / changed
            path.write_text(path.read_text() + "\n")
            print_row(f"changed: {changed}", run(lint, cache))
        if shutil.which(HERE / "mypy"):
            command = (
                HERE / "mypy",
                "--cache-dir",
                os.devnull,
                "--ignore-missing-imports",
                folder / "part_1",
            )
            print_row("mypy, one folder", run(command, cache), count_lines(folder / "part_1"))
    print(
        "targets: 300,000 lines in 10 s without cache, 1 s with, 1 GiB; one file 0.15 s; one file "
        "changed 0.5 s per 100,000 lines; 150,000 lines/s without collectives"
    )


def count_file_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    return path.read_bytes().count(b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
