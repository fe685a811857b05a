"""What ``holdfast submit`` starts: the part of a job that all schedulers share."""

from __future__ import annotations

import re
import sys

import msgspec

from holdfast.core.errors import InvalidValue

#: Seconds between the end of the workers' grace period and that of the scheduler.
RESERVE_S = 10
#: Shortest warning in which a small job can save.
MIN_WARNING_S = RESERVE_S + 5
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,51}[a-z0-9])?")


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job of ``nodes`` nodes with ``workers`` workers each.

    ``run_words``: options of ``holdfast run``, the script and its arguments. ``warning_s``: seconds
    between the scheduler's warning and the end of the job. ``gate``: check the nodes before each
    start. ``runs``: parent of the run folders, on a disk that all nodes share.

    Raises:
        InvalidValue: the name or the warning is invalid.
    """

    name: str
    run_words: tuple[str, ...]
    nodes: int = 1
    workers: int = 1
    warning_s: int = 120
    gate: bool = True
    checkpoints: str | None = None
    runs: str = "holdfast-runs"
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Validate what schedulers restrict."""
        if not _NAME.fullmatch(self.name):
            raise InvalidValue(
                "--name",
                why=f"{self.name!r} does not consist of lower-case letters, digits and hyphens",
                next_step="use a name such as train-7b",
            )
        if self.warning_s < MIN_WARNING_S:
            raise InvalidValue(
                "--warning",
                why=f"{self.warning_s} s is too short to save a checkpoint",
                next_step=f"use {MIN_WARNING_S}s or more",
            )

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of the job."""
        grace = {"HOLDFAST_GRACE_S": str(self.warning_s - RESERVE_S)}
        return {**grace, "HOLDFAST_RUN_DIR": self.runs, **dict(self.environment)}

    @property
    def check_words(self) -> tuple[str, ...]:
        """Return the options of ``holdfast check`` for one node."""
        folder = () if self.checkpoints is None else ("--checkpoints", self.checkpoints)
        return ("--nproc-per-node", str(self.workers), *folder)


def default_name(script: str) -> str:
    """Return a valid job name made of the script's name."""
    stem = script.rpartition("/")[2].removesuffix(".py").lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-0123456789")[:40].rstrip("-") or "train"
