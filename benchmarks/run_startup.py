"""Time from the command to the script's first line: `holdfast run` next to torchrun, interleaved.

The script's first line is executed on the last rank that reaches it. The recorder is compiled
before the first round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 9
RANKS = 2
HERE = Path(sys.executable).parent
TARGET_S = 0.3

#: Appends the time of its first line; ranks share one system clock.
SCRIPT = """\
import time; first_line = time.time()
import os
with open(os.environ["FIRST_LINES"], "a") as file:
    file.write(f"{first_line}\\n")
"""
LAUNCHERS = {
    "torchrun": [str(HERE / "torchrun")],
    "holdfast run": [str(HERE / "holdfast"), "run"],
}


def _once(launcher: list[str], folder: Path) -> tuple[float, float]:
    """Return the seconds until the first line and until the launcher exited."""
    times = folder / "first_lines"
    times.unlink(missing_ok=True)
    script = folder / "script.py"
    script.write_text(SCRIPT)
    began = time.time()
    subprocess.run(
        [*launcher, "--standalone", "--nproc-per-node", str(RANKS), str(script)],
        cwd=folder,
        env={**os.environ, "FIRST_LINES": str(times), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    ended = time.time()
    return max(map(float, times.read_text().split())) - began, ended - began


def main() -> None:
    """Print medians, and the difference between the launchers."""
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in LAUNCHERS}
    with tempfile.TemporaryDirectory() as folder:
        for launcher in LAUNCHERS.values():
            _once(launcher, Path(folder))
        for _ in range(ROUNDS):
            for name, launcher in LAUNCHERS.items():
                results[name].append(_once(launcher, Path(folder)))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in results.items()
    }
    for name, (first_line_s, whole_s) in medians.items():
        print(f"{name:13} {first_line_s:6.2f} s to the first line {whole_s:6.2f} s in all")
    extra_s = medians["holdfast run"][0] - medians["torchrun"][0]
    print(f"holdfast run adds {extra_s:+.2f} s to the first line (target: {TARGET_S:+.2f} s)")


if __name__ == "__main__":
    main()
