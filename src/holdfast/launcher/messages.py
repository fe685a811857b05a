"""One-line messages of the agent, and the launch plan."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.text import one_line
from holdfast.launcher.elastic.generation import Generation
from holdfast.launcher.presets import AppliedPreset


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the node needs before workers start.

    ``gaps`` are the variables added for workers, ``environment`` is the watcher's; ``preset`` says
    which of them presets set.
    ``command`` is the script with its arguments and ``launch_options`` what precedes it, as typed.
    """

    workers: int
    recorder: str
    native: str
    inject: str
    environment: Mapping[str, str]
    gaps: Mapping[str, str]
    preset: AppliedPreset = AppliedPreset()
    json_report: Path | None
    group_timeout_s: float | None = None
    script: str = ""
    command: tuple[str, ...] = ()
    launch_options: tuple[str, ...] = ()


def print_message(text: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(f"holdfast: {one_line(text)}\n")
    sys.stderr.flush()


def start_message(generation: Generation, plan: LaunchPlan, folder: Path) -> str:
    """Describe a start: ranks on this node, recorder and run folder."""
    recorder = plan.recorder
    if recorder in ("auto", "native"):
        recorder = "native" if plan.native else "python"
    first, last = generation.workers[0].rank, generation.workers[-1].rank
    ranks = f"ranks {first} to {last}" if last > first else f"rank {first}"
    local = f"{ranks} of {generation.world_size}"
    return f"generation {generation.number}: {local}, recorder {recorder}, run folder {folder}"


def describe_exits(codes: Mapping[int, int]) -> str:
    """Describe the failed ranks by their exit codes."""
    failed = [
        f"rank {rank} {_exit_text(code)}" for rank, code in sorted(codes.items()) if code != 0
    ]
    return ", ".join(failed) or "workers on another node failed"


def _exit_text(code: int) -> str:
    if code > 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
