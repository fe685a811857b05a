"""Time of a DDP training step under holdfast (recorder, watcher, log per rank) and under torchrun.

All jobs run ``examples/rvq/train.py`` on two ranks. They take turns: while one runs, the process
trees of the others, launcher and watcher included, are stopped. Only complete steps of a turn
count. Each turn is compared with torchrun's of the same round, in wall time and in CPU time of all
its processes.
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
    """Milliseconds per step."""

    wall: float
    cpu: float


class Job:
    """One training run that can be stopped and continued."""

    def __init__(self, name: str, folder: Path) -> None:
        self._steps = folder / "steps"
        command = [
            *LAUNCHERS[name],
            "--standalone",
            "--nproc-per-node=2",
            str(CLOCK),
            str(folder),
            str(EXAMPLE),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with (folder / "log").open("wb") as log:
            self._launcher = subprocess.Popen(
                # At its usual rate the example diverges after some 2,800 steps.
                [*command, "--max-steps", "10000000", "--lr", "1e-6"],
                env=environment,
                cwd=folder,
                stdout=log,
                stderr=log,
            )

    def steps(self) -> np.ndarray:
        """Return the times of all steps so far, in seconds."""
        return np.fromfile(self._steps, dtype="<f8") if self._steps.exists() else np.empty(0)

    def warm_up(self) -> None:
        """Wait for the first steps."""
        limit = time.monotonic() + START_LIMIT_S
        while len(self.steps()) < WARM_STEPS:
            if time.monotonic() > limit or self._launcher.poll() is not None:
                raise RuntimeError(f"no steps; see {self._steps.parent / 'log'}")
            time.sleep(0.1)

    def signal(self, number: int) -> None:
        """Signal every process of the job: the launcher first if it stops, last if it continues."""
        tree = [
            psutil.Process(self._launcher.pid),
            *psutil.Process(self._launcher.pid).children(recursive=True),
        ]
        for process in tree if number == signal.SIGSTOP else reversed(tree):
            process.send_signal(number)

    def cpu_s(self) -> float:
        """Return the CPU seconds of all processes of the job so far."""
        launcher = psutil.Process(self._launcher.pid)
        return sum(
            sum(process.cpu_times()[:2])
            for process in (launcher, *launcher.children(recursive=True))
        )

    def turn(self) -> Turn:
        """Run the job for one turn."""
        before, used = len(self.steps()), self.cpu_s()
        self.signal(signal.SIGCONT)
        begun = time.monotonic()
        time.sleep(TURN_S)
        ended = time.monotonic()
        self.signal(signal.SIGSTOP)
        steps = self.steps()
        if len(steps) == before:
            raise RuntimeError(f"no step in a turn; see {self._steps.parent / 'log'}")
        within = steps[(steps > begun) & (steps < ended)][2:]
        return Turn(
            float(np.diff(within).mean() * 1000),
            (self.cpu_s() - used) * 1000 / (len(steps) - before),
        )

    def end(self) -> None:
        """Continue the job and terminate its launcher, which ends the workers."""
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
            job_folder = folder / name
            job_folder.mkdir()
            jobs[name] = Job(name, job_folder)
            jobs[name].warm_up()
            jobs[name].signal(signal.SIGSTOP)
        rounds = [{name: job.turn() for name, job in jobs.items()} for _ in range(TURNS)]
    finally:
        for job in jobs.values():
            job.end()
    return {name: [each[name] for each in rounds] for name in LAUNCHERS}


def compare(values: np.ndarray, base: np.ndarray) -> str:
    """Format median, median ratio to ``base`` per turn, and its 95% interval by bootstrap."""
    ratios = values / base
    medians = np.median(np.random.default_rng(0).choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return f"{np.median(values):7.2f} ms {np.median(ratios):6.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        turns_by_job = {name: np.array(turns) for name, turns in take_turns(Path(folder)).items()}
    base = turns_by_job["torchrun"]
    print(
        f"{'':16} {'step time, relative to torchrun (95%)':>38} "
        f"{'CPU of all processes per step':>38}"
    )
    for name, turns in turns_by_job.items():
        wall, cpu = (compare(turns[:, at], base[:, at]) for at in (0, 1))
        print(f"{name:16} {wall:>38} {cpu:>38}")
    print(f"{TURNS} turns of {TURN_S:g} s each; target: holdfast run at most 1.01 of torchrun")


if __name__ == "__main__":
    main()
