"""Start-up: `holdfast --help` and `import holdfast`, next to `torchrun --help` and a bare interpreter."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
HERE = Path(sys.executable).parent

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import holdfast": [sys.executable, "-c", "import holdfast"],
    "holdfast --help": [str(HERE / "holdfast"), "--help"],
    "torchrun --help": [str(HERE / "torchrun"), "--help"],
}


def _once(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print medians of interleaved runs; torchrun takes part in three rounds only, it is slow."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for each in COMMANDS.values():
        _once(each)
    for number in range(ROUNDS):
        for name, command in COMMANDS.items():
            if number < 3 or name != "torchrun --help":
                taken[name].append(_once(command))
    bare = statistics.median(taken["python -c pass"])
    for name, values in taken.items():
        middle = statistics.median(values)
        print(f"{name:18} {middle * 1000:8.1f} ms   {(middle - bare) * 1000:+8.1f} ms over a bare interpreter")
    print("targets: holdfast --help 100 ms, import holdfast 50 ms")


if __name__ == "__main__":
    main()
