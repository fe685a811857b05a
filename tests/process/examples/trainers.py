"""Run one of the four trainers in forked ranks, and parse its output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.process.launched import Launched

EXAMPLES = Path(__file__).parents[3] / "examples"
VARIABLES = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "COLUMNS": "400"}


@dataclass
class Trained:
    """Result of a job: losses of rank 0 by step, metrics by step (empty after a failure)."""

    folder: Path
    status: int
    output: str
    losses: dict[int, float]
    evaluated: dict[int, dict[str, float]]

    def ended(self) -> dict[int, tuple[int, float, int]]:
        """Return for each rank its last step, and value and step of the best evaluation."""
        found = re.findall(
            r"rank (\d+): done after step (\d+), best (\S+) of step (\S+)", self.output
        )
        return {
            int(rank): (int(last), float(value), int(step)) for rank, last, value, step in found
        }


def train(example: str, folder: Path, *arguments: str, ranks: int = 2) -> Trained:
    """Run an example's trainer under `holdfast run` in ``folder``, to its end."""
    options = ["--standalone", f"--nproc-per-node={ranks}"]
    trainer = EXAMPLES / example / "trainer.py"
    job = Launched(folder, *options, trainer, *arguments, **VARIABLES)
    status, output = job.end(100), job.output
    losses = {
        int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss (\S+)", output)
    }
    evaluated = {
        int(step): {name: float(value) for name, value in re.findall(r"(\w+/\w+) (\S+)", metrics)}
        for step, metrics in re.findall(r"step +(\d+)((?:  \w+/\w+ \S+)*)  \(evaluation", output)
    }
    return Trained(folder, status, output, losses, evaluated)


def assert_learned(trained: Trained, steps: int = 60) -> None:
    """Assert all steps, a lower loss, successful evaluations, equal ends, and no incident."""
    assert trained.status == 0, trained.output
    assert sorted(trained.losses) == list(range(1, steps + 1)), trained.output
    assert trained.losses[1] > 2.7
    assert trained.losses[steps] < 1.35
    assert sorted(trained.evaluated) == list(range(10, steps + 1, 10))
    for metrics in trained.evaluated.values():
        assert sorted(metrics) == ["long/accuracy", "long/loss", "short/accuracy", "short/loss"], (
            trained.output
        )
    best = min((metrics["short/loss"], step) for step, metrics in trained.evaluated.items())
    assert trained.ended() == dict.fromkeys((0, 1), (steps, *best))
    assert_no_incident(trained)


def assert_continued(trained: Trained, undisturbed: Trained, failed_at: int = 20) -> None:
    """Assert that one evaluation failed on rank 1, and all else equals the undisturbed job."""
    assert trained.status == 0, trained.output
    assert f"evaluation at step {failed_at} failed after 4 attempts" in trained.output
    assert "rank 1: RuntimeError: injected by --fail-evaluation" in trained.output
    assert trained.evaluated[failed_at] == {}, trained.output
    assert trained.evaluated == undisturbed.evaluated | {failed_at: {}}
    assert trained.losses == undisturbed.losses
    assert trained.ended() == undisturbed.ended()
    assert_no_incident(trained)


def assert_no_incident(trained: Trained) -> None:
    """Assert that the watcher reported nothing."""
    assert list(trained.folder.glob("runs/*/incidents/*")) == [], trained.output
    assert "✗" not in trained.output
    assert "silent for" not in trained.output
