"""Starts one of the four trainers as a user does, and reads what it printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
VARIABLES = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "COLUMNS": "400"}


@dataclass
class Trained:
    """What a job left: ``losses`` of rank 0 by step, ``evaluated``: metrics by step (none where it failed)."""

    folder: Path
    status: int
    output: str
    losses: dict[int, float]
    evaluated: dict[int, dict[str, float]]

    def ended(self) -> dict[int, tuple[int, float, int]]:
        """Of each rank: the step it ended after, and value and step of the best evaluation."""
        found = re.findall(r"rank (\d+): done after step (\d+), best (\S+) of step (\S+)", self.output)
        return {int(rank): (int(last), float(value), int(step)) for rank, last, value, step in found}


def train(example: str, folder: Path, *arguments: str, ranks: int = 2) -> Trained:
    """`holdfast run` of an example's trainer in ``folder``, to its end."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("HOLDFAST_", "PET_"))}
    command = [sys.executable, "-m", "holdfast", "run", "--standalone", f"--nproc-per-node={ranks}", "--run-dir=runs"]
    done = subprocess.run(
        [*command, str(EXAMPLES / example / "trainer.py"), *arguments],
        cwd=folder, env=environment | VARIABLES, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=100, check=False,
    )  # fmt: skip
    losses = {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss (\S+)", done.stdout)}
    evaluated = {
        int(step): {name: float(value) for name, value in re.findall(r"(\w+/\w+) (\S+)", metrics)}
        for step, metrics in re.findall(r"step +(\d+)((?:  \w+/\w+ \S+)*)  \(evaluation", done.stdout)
    }
    return Trained(folder, done.returncode, done.stdout, losses, evaluated)


def learned(trained: Trained, steps: int = 60) -> None:
    """All steps were made, the loss fell, no evaluation failed, both ranks ended alike, and the watcher was silent."""
    assert trained.status == 0, trained.output
    assert sorted(trained.losses) == list(range(1, steps + 1)), trained.output
    assert trained.losses[1] > 2.7
    assert trained.losses[steps] < 1.35
    assert sorted(trained.evaluated) == list(range(10, steps + 1, 10))
    for metrics in trained.evaluated.values():
        assert sorted(metrics) == ["long/accuracy", "long/loss", "short/accuracy", "short/loss"], trained.output
    best = min((metrics["short/loss"], step) for step, metrics in trained.evaluated.items())
    assert trained.ended() == dict.fromkeys((0, 1), (steps, *best))
    assert_silent(trained)


def went_on(trained: Trained, whole: Trained, failed_at: int = 20) -> None:
    """One evaluation failed on rank 1: it has no metrics, and all else is as in the job in which nothing failed."""
    assert trained.status == 0, trained.output
    assert f"evaluation at step {failed_at} failed after 4 tries" in trained.output
    assert "rank 1: RuntimeError: asked for by --fail-evaluation" in trained.output
    assert trained.evaluated[failed_at] == {}, trained.output
    assert trained.evaluated == whole.evaluated | {failed_at: {}}
    assert trained.losses == whole.losses
    assert trained.ended() == whole.ended()
    assert_silent(trained)


def assert_silent(trained: Trained) -> None:
    """No verdict, no incident, and no line about a hang: nothing of this is the watcher's matter."""
    assert list(trained.folder.glob("runs/*/incidents/*")) == [], trained.output
    assert "✗" not in trained.output
    assert "silent for" not in trained.output
