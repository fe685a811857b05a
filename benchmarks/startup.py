"""Start-up time of `import holdfast`, `holdfast --help` and `env`, next to torch's tools."""

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
#: Slow commands, run in three rounds only.
SLOW = ("torchrun --help", "torch collect_env")


def _once(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print medians of interleaved runs, and the ratio of `holdfast env` to torch's collect_env."""
    durations: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for each in COMMANDS.values():
        _once(each)
    for number in range(ROUNDS):
        for name, command in COMMANDS.items():
            if number < 3 or name not in SLOW:
                durations[name].append(_once(command))
    bare = statistics.median(durations["python -c pass"])
    for name, values in durations.items():
        median_s = statistics.median(values)
        print(
            f"{name:18} {median_s * 1000:8.1f} ms   {(median_s - bare) * 1000:+8.1f} ms over a "
            "bare interpreter"
        )
    ratio = statistics.median(durations["torch collect_env"]) / statistics.median(
        durations["holdfast env"]
    )
    print(f"holdfast env takes 1/{ratio:.0f} of the time of torch's collect_env")
    print("targets: holdfast --help 100 ms, import holdfast 50 ms, holdfast env 150 ms")


if __name__ == "__main__":
    main()
