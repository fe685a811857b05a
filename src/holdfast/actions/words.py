"""What the agent says in one line: what a start is made of, who died of what. And the plan that a start follows."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.report.text import one_line
from holdfast.runtime.generation import Generation


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of the wish: everything that the node needs to know before workers start.

    ``gaps`` is what the preset adds to the environment of workers, ``environment`` that of the watcher.
    """

    workers: int
    recorder: str
    native: str
    inject: str
    preset: str | None
    environment: Mapping[str, str]
    gaps: Mapping[str, str]
    json_report: Path | None
    group_timeout_s: float | None = None
    script: str = ""


def say(text: str) -> None:
    """One line for people, on stderr."""
    sys.stderr.write(f"holdfast: {one_line(text)}\n")
    sys.stderr.flush()


def introduction(generation: Generation, plan: Plan, folder: Path) -> str:
    """Who runs here, how it is recorded, and where everything goes."""
    recorder = plan.recorder
    if recorder in ("auto", "native"):
        recorder = "native" if plan.native else "python"
    first, last = generation.workers[0].rank, generation.workers[-1].rank
    ranks = f"ranks {first} to {last}" if last > first else f"rank {first}"
    pairs = " ".join(f"{name}={value}" for name, value in sorted(plan.gaps.items()))
    preset = f", preset {plan.preset} sets {pairs}" if pairs else ""
    who = f"{ranks} of {generation.world_size}"
    return f"generation {generation.number}: {who}, recorder {recorder}{preset}, run folder {folder}"


def deaths(codes: Mapping[int, int]) -> str:
    """What the exit codes alone say, by rank."""
    died = [f"rank {rank} {_death(code)}" for rank, code in sorted(codes.items()) if code != 0]
    return ", ".join(died) or "workers of another node died"


def _death(code: int) -> str:
    if code > 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
