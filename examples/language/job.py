"""What the four trainers share beside what they learn: options, lines, the best step, evaluation that fails."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast import evaluate, sinks
from holdfast.runtime import faults

CHOSEN_BY = "short/loss"  # the metric that the best step is chosen by, and that training is stopped by; less is better


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of all four."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--steps", type=int, default=60)
    made.add_argument("--batch-size", type=int, default=16, help="texts of a step and rank")
    made.add_argument("--lr", type=float, default=5e-3)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--evaluate-every", type=int, default=10, metavar="STEPS")
    made.add_argument("--budget", default="2m", help="how long one evaluation may take: 90s, 10m")
    made.add_argument("--patience", type=int, default=4, help="stop after so many evaluations that were no better")
    made.add_argument("--save-best", type=Path, metavar="FOLDER", help="where the weights of the best step are kept")
    made.add_argument("--metrics-file", type=Path, metavar="FILE", help="a line of JSON for each evaluation")
    made.add_argument("--fail-evaluation", default="", metavar="FAULT", help="such as exception@rank=1,step=20")
    return made


def metric_sinks(options: argparse.Namespace) -> list[sinks.JsonLines]:
    """Where the numbers of each evaluation go."""
    return [sinks.JsonLines(options.metrics_file)] if options.metrics_file is not None else []


def say(step: int, loss: Tensor) -> None:
    """The line of a step, of rank 0."""
    if dist.get_rank() == 0:
        print(f"step {step:3d}  loss {loss.item():.6f}", flush=True)


@dataclass
class Best:
    """The best evaluation so far, and how many in a row were no better.

    One that failed has no metrics: it is neither the best nor one that was no better. Read as a loss of 0.0 it would be
    the best for ever. All ranks get the same result, so that they stop together.
    """

    patience: int
    step: int | None = None
    value: float = float("inf")
    no_better: int = 0

    def consider(self, step: int, result: evaluate.EvalResult) -> bool:
        """Say what an evaluation found; True where it is the best."""
        if dist.get_rank() == 0:
            metrics = "".join(f"  {name} {value:.6f}" for name, value in result.metrics.items())
            print(f"step {step:3d}{metrics}  ({result})", flush=True)
        value = result.metrics.get(CHOSEN_BY)
        if value is None:
            return False
        if value < self.value:
            self.step, self.value, self.no_better = step, value, 0
            return True
        self.no_better += 1
        return False

    @property
    def enough(self) -> bool:
        """True where the metric has not become better for as long as the patience lasts."""
        return self.no_better >= self.patience

    def say_end(self, step: int) -> None:
        """The last line of every rank: that they end at the same step can be seen."""
        print(f"rank {dist.get_rank()}: done after step {step}, best {self.value:.6f} of step {self.step}", flush=True)


@dataclass
class Sabotage:
    """Counts a batch as asked, and fails at it where a fault is due: on this rank, in the evaluation of that step.

    The faults are written as for ``holdfast run --inject``, which strikes in training: ``exception`` (every time),
    ``out-of-memory`` (with more than ``FITS`` texts at once), ``slow`` (so many ``seconds`` a batch).
    """

    FITS = 4
    KINDS = ("exception", "out-of-memory", "slow")

    count: Callable[[nn.Module, Tensor], Mapping[str, Any]]
    asked: str
    step: int = 0

    def __post_init__(self) -> None:
        parsed = faults.parse(self.asked)
        if strange := {fault.kind for fault in parsed}.difference(self.KINDS):
            raise SystemExit(f"--fail-evaluation knows {', '.join(self.KINDS)}, not {', '.join(strange)}")
        self._mine = [fault for fault in parsed if fault.ranks is None or dist.get_rank() in fault.ranks]

    def __call__(self, model: nn.Module, texts: Tensor) -> Mapping[str, Any]:
        """What ``count`` gives for a batch, where no fault is due."""
        for fault in self._mine:
            if fault.step == self.step:
                self._strike(fault, len(texts))
        return self.count(model, texts)

    def _strike(self, fault: faults.Fault, texts: int) -> None:
        if fault.kind == "slow":
            time.sleep(fault.seconds)
        elif fault.kind == "exception":
            raise RuntimeError("asked for by --fail-evaluation")
        elif texts > self.FITS:
            raise torch.OutOfMemoryError(f"asked for by --fail-evaluation: {texts} texts at once")
