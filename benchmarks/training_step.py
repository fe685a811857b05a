"""Time of a DDP training step of the example under holdfast (recorder and watcher on) and under torchrun.

Both run ``examples/rvq/train.py`` on two ranks, in turns; the first forty steps are left out.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "7"))
HERE = Path(sys.executable).parent
EXAMPLE = Path(__file__).parent.parent / "examples" / "rvq" / "train.py"
STEPS = 300

LAUNCHERS = {
    "torchrun": (str(HERE / "torchrun"),),
    "holdfast run": (str(HERE / "holdfast"), "run"),
}


def once(name: str) -> float:
    """Median milliseconds a step, as the example itself prints them every 20 steps."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [*LAUNCHERS[name], "--standalone", "--nproc-per-node=2", str(EXAMPLE), "--max-steps", str(STEPS)]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    printed = [line.split() for line in done.stdout.splitlines() if line.rstrip().endswith("ms a step")]
    return statistics.median(float(words[words.index("ms") - 1]) for words in printed[2:])


def main() -> None:
    """Print medians and the ratio pair by pair."""
    taken: dict[str, list[float]] = {name: [] for name in LAUNCHERS}
    for _ in range(ROUNDS):
        for name in LAUNCHERS:
            taken[name].append(once(name))
    for name, values in taken.items():
        ratio = statistics.median(ours / theirs for ours, theirs in zip(values, taken["torchrun"], strict=True))
        spread = " ".join(f"{value:.1f}" for value in sorted(values))
        print(f"{name:42} {statistics.median(values):7.2f} ms a step   {ratio:6.3f} of torchrun   ({spread})")
    print("target: holdfast run at most 1.01 of torchrun")


if __name__ == "__main__":
    main()
