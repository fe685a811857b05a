"""Shared by the four trainers: options, output lines, the best step, and failing evaluations."""

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
from holdfast.recorder import faults

CHOSEN_BY = "short/loss"  # metric of the best step and of early stopping; lower is better


def create_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser for the common options."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=16, help="texts per step and rank")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--budget", default="2m", help="time limit of one evaluation: 90s, 10m")
    parser.add_argument(
        "--patience",
        type=int,
        default=4,
        help="stop after this many evaluations without improvement",
    )
    parser.add_argument(
        "--save-best", type=Path, metavar="FOLDER", help="folder for the weights of the best step"
    )
    parser.add_argument(
        "--metrics-file", type=Path, metavar="FILE", help="write one JSON line per evaluation"
    )
    parser.add_argument(
        "--fail-evaluation",
        default="",
        metavar="FAULT",
        help="inject a fault, e.g. exception@rank=1,step=20",
    )
    return parser


def metric_sinks(options: argparse.Namespace) -> list[sinks.JsonLines]:
    """Return the sinks for the metrics of each evaluation."""
    return [sinks.JsonLines(options.metrics_file)] if options.metrics_file is not None else []


def print_step(step: int, loss: Tensor) -> None:
    """Print the line of a step, on rank 0."""
    if dist.get_rank() == 0:
        print(f"step {step:3d}  loss {loss.item():.6f}", flush=True)


@dataclass
class BestStep:
    """The best evaluation so far, and the number of later ones without improvement.

    A failed evaluation has no metrics: it is neither the best nor without improvement. Read as a
    loss of 0.0 it would stay the best forever. All ranks get the same result, so that they stop
    together.
    """

    patience: int
    step: int | None = None
    value: float = float("inf")
    stale: int = 0

    def consider(self, step: int, result: evaluate.EvalResult) -> bool:
        """Print the result of an evaluation; return True if it is the best."""
        if dist.get_rank() == 0:
            metrics = "".join(f"  {name} {value:.6f}" for name, value in result.metrics.items())
            print(f"step {step:3d}{metrics}  ({result})", flush=True)
        value = result.metrics.get(CHOSEN_BY)
        if value is None:
            return False
        if value < self.value:
            self.step, self.value, self.stale = step, value, 0
            return True
        self.stale += 1
        return False

    @property
    def is_exhausted(self) -> bool:
        """Return whether the patience is exhausted."""
        return self.stale >= self.patience

    def print_summary(self, step: int) -> None:
        """Print the last line of every rank, to show that all end at the same step."""
        print(
            f"rank {dist.get_rank()}: done after step {step}, best {self.value:.6f} of step "
            f"{self.step}",
            flush=True,
        )


@dataclass
class FaultyCount:
    """Calls ``count`` for a batch, but injects the faults of this rank in the evaluation of a step.

    Faults are written as for ``holdfast run --inject``, which applies to training: ``exception``
    (every time), ``out-of-memory`` (with more than ``FITS`` texts at once), ``slow`` (``seconds``
    per batch).
    """

    FITS = 4
    KINDS = ("exception", "out-of-memory", "slow")

    count: Callable[[nn.Module, Tensor], Mapping[str, Any]]
    fault: str
    step: int = 0

    def __post_init__(self) -> None:
        parsed = faults.parse_fault(self.fault)
        if unknown := {fault.kind for fault in parsed}.difference(self.KINDS):
            raise SystemExit(
                f"invalid value for --fail-evaluation: {', '.join(unknown)} "
                f"(choose from {', '.join(self.KINDS)})"
            )
        self._mine = [
            fault for fault in parsed if fault.ranks is None or dist.get_rank() in fault.ranks
        ]

    def __call__(self, model: nn.Module, texts: Tensor) -> Mapping[str, Any]:
        """Return the counts of a batch, unless a fault raises."""
        for fault in self._mine:
            if fault.step == self.step:
                self._inject(fault, len(texts))
        return self.count(model, texts)

    def _inject(self, fault: faults.Fault, texts: int) -> None:
        if fault.kind == "slow":
            time.sleep(fault.seconds)
        elif fault.kind == "exception":
            raise RuntimeError("injected by --fail-evaluation")
        elif texts > self.FITS:
            raise torch.OutOfMemoryError(f"injected by --fail-evaluation: {texts} texts at once")
