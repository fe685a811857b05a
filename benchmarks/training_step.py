"""Time of a DDP training step of the example under holdfast (recorder, watcher, logs of each rank) and under torchrun.

Both jobs run ``examples/rvq/train.py`` on two ranks at once, but never at the same time: each in turn is let run for a
moment while the other's whole process tree, launcher and watcher included, is stopped. Steps that lie wholly within a
turn count. Each turn is compared with torchrun's of the same round, in wall time and in CPU time of all its processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

HERE = Path(sys.executable).parent
CLOCK = Path(__file__).parent / "step_clock.py"
EXAMPLE = Path(__file__).parent.parent / "examples" / "rvq" / "train.py"
TURNS = int(os.environ.get("HOLDFAST_BENCH_TURNS", "150"))
TURN_S = 0.6
WARM_STEPS = 60
START_LIMIT_S = 60.0

LAUNCHERS = {
    "torchrun": (str(HERE / "torchrun"),),
    "torchrun again": (str(HERE / "torchrun"),),
    "holdfast run": (str(HERE / "holdfast"), "run"),
}


class Turn(NamedTuple):
    """Milliseconds a step."""

    wall: float
    cpu: float


class Job:
    """One training run, which can be stopped and let go on."""

    def __init__(self, name: str, folder: Path) -> None:
        self._steps = folder / "steps"
        command = [*LAUNCHERS[name], "--standalone", "--nproc-per-node=2", str(CLOCK), str(folder), str(EXAMPLE)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (folder / "said").open("wb") as said:
            self._launcher = subprocess.Popen(
                [*command, "--max-steps", "10000000"], env=environment, cwd=folder, stdout=said, stderr=said
            )

    def steps(self) -> np.ndarray:
        """Times of all steps so far (s)."""
        return np.fromfile(self._steps, dtype="<f8") if self._steps.exists() else np.empty(0)

    def warm_up(self) -> None:
        """Wait for the first steps."""
        limit = time.monotonic() + START_LIMIT_S
        while len(self.steps()) < WARM_STEPS:
            if time.monotonic() > limit or self._launcher.poll() is not None:
                raise RuntimeError(f"{self._steps.parent / 'said'} tells why no step was made")
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """To every process of the job; the launcher and the watcher last when it goes on, first when it stops."""
        tree = [psutil.Process(self._launcher.pid), *psutil.Process(self._launcher.pid).children(recursive=True)]
        for process in tree if number == signal.SIGSTOP else reversed(tree):
            process.send_signal(number)

    def cpu_s(self) -> float:
        """CPU seconds that all processes of the job have used so far."""
        launcher = psutil.Process(self._launcher.pid)
        return sum(
            sum(process.cpu_times()[:2]) for process in (launcher, *launcher.children(recursive=True))
        )  # fmt: skip

    def turn(self) -> Turn:
        """Let it run for one turn."""
        before, used = len(self.steps()), self.cpu_s()
        self.signal(signal.SIGCONT)
        begun = time.monotonic()
        time.sleep(TURN_S)
        ended = time.monotonic()
        self.signal(signal.SIGSTOP)
        steps = self.steps()
        within = steps[(steps > begun) & (steps < ended)][2:]
        return Turn(float(np.diff(within).mean() * 1000), (self.cpu_s() - used) * 1000 / (len(steps) - before))

    def end(self) -> None:
        """Let the launcher end its workers."""
        if self._launcher.poll() is not None:
            return
        self.signal(signal.SIGCONT)
        self._launcher.terminate()
        self._launcher.wait(60)


def take_turns(folder: Path) -> dict[str, list[Turn]]:
    """Start a job with each launcher, then let them run in turns."""
    jobs: dict[str, Job] = {}
    try:
        for name in LAUNCHERS:
            place = folder / name
            place.mkdir()
            jobs[name] = Job(name, place)
            jobs[name].warm_up()
            jobs[name].signal(signal.SIGSTOP)
        rounds = [{name: job.turn() for name, job in jobs.items()} for _ in range(TURNS)]
    finally:
        for job in jobs.values():
            job.end()
    return {name: [each[name] for each in rounds] for name in LAUNCHERS}


def compare(values: np.ndarray, base: np.ndarray) -> str:
    """Median, the ratio to ``base`` turn by turn, and the interval in which its median lies (95 %, by bootstrap)."""
    ratios = values / base
    medians = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return f"{np.median(values):7.2f} ms {np.median(ratios):6.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        taken = {name: np.array(turns) for name, turns in take_turns(Path(folder)).items()}
    base = taken["torchrun"]
    print(f"{'':16} {'a step, of torchrun (95 %)':>36} {'CPU of all processes a step':>36}")
    for name, turns in taken.items():
        wall, cpu = (compare(turns[:, at], base[:, at]) for at in (0, 1))
        print(f"{name:16} {wall:>36} {cpu:>36}")
    print(f"{TURNS} turns of {TURN_S:g} s each; target: holdfast run at most 1.01 of torchrun")


if __name__ == "__main__":
    main()
