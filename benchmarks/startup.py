"""Start-up: `holdfast --help`, `holdfast env` and `import holdfast`, next to torchrun, collect_env and bare Python."""

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
    "holdfast env": [str(HERE / "holdfast"), "env"],
    "torchrun --help": [str(HERE / "torchrun"), "--help"],
    "torch collect_env": [sys.executable, "-m", "torch.utils.collect_env"],
}
#: Slow ones, which take part in three rounds only.
SLOW = ("torchrun --help", "torch collect_env")


def _once(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print medians of interleaved runs, and how much faster the audit is than torch's own look at the environment."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for each in COMMANDS.values():
        _once(each)
    for number in range(ROUNDS):
        for name, command in COMMANDS.items():
            if number < 3 or name not in SLOW:
                taken[name].append(_once(command))
    bare = statistics.median(taken["python -c pass"])
    for name, values in taken.items():
        middle = statistics.median(values)
        print(f"{name:18} {middle * 1000:8.1f} ms   {(middle - bare) * 1000:+8.1f} ms over a bare interpreter")
    ratio = statistics.median(taken["torch collect_env"]) / statistics.median(taken["holdfast env"])
    print(f"holdfast env takes 1/{ratio:.0f} of the time of torch's collect_env")
    print("targets: holdfast --help 100 ms, import holdfast 50 ms, holdfast env 150 ms")


if __name__ == "__main__":
    main()
