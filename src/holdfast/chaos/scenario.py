"""What a scenario consists of: a job, its faults and their triggers, the expected outcome."""

from __future__ import annotations

import msgspec

STEPS = 30
SAVE_EVERY = 6
#: Short phase timeouts, so that a hang is detected in seconds instead of minutes.
PHASE_TIMEOUTS = {
    "HOLDFAST_FIRST_STEP_S": "12",
    "HOLDFAST_CHECKPOINT_S": "15",
    "HOLDFAST_EVALUATION_S": "8",
    "HOLDFAST_ACT_AFTER": "5s",
}


def name_set(*names: str) -> frozenset[str]:
    """Return a set of names."""
    return frozenset(names)


class ExternalFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault from outside the ranks: its kind (a key of ``EXTERNAL_FAULTS``) and its trigger.

    It is injected ``delay_s`` seconds after a rank recorded ``what`` ("step", "saving", "saved",
    "evaluated") at ``step`` or later; "start": once the rank processes exist; "submitted":
    immediately. ``host`` is the target host; ``seconds`` the size of a clock jump.
    """

    kind: str
    what: str = "step"
    step: int = 0
    delay_s: float = 0.0
    host: int = 1
    seconds: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One job with its faults.

    ``ranks`` is the total over all ``hosts``. ``options`` are passed to `holdfast run`, ``trainer``
    to the job. ``causes`` are the allowed roots of its verdicts; empty: no failure expected.
    ``expected_actions`` are the allowed decisions, and ``adjusted`` the setting that the last one
    must change. ``faulty_rank`` is the rank that the first verdict must name. ``submissions`` is
    the number of submissions, more than 1 if the agent itself is lost. ``damaged_checkpoints`` is
    how many of the newest checkpoints a fault makes unusable. ``disk_mib`` is the size of a
    separate checkpoint disk, ``memory_mib`` the memory limit of all processes; 0: none. ``clock``:
    the job reads a shiftable clock. ``elastic``: nodes may leave and join.

    ``undisturbed_options`` are trainer options of the undisturbed run, and ``shrink_after`` the
    step after which it continues with one rank fewer, for scenarios whose recovery changes the
    computation. For those, only the steps that count in the end are compared.
    """

    name: str
    fault: str
    moment: str = "middle"
    mode: str = "ddp"
    ranks: int = 2
    hosts: int = 1
    inject: tuple[str, ...] = ()
    external_faults: tuple[ExternalFault, ...] = ()
    causes: frozenset[str] = frozenset()
    expected_actions: frozenset[str] = frozenset({"restart"})
    adjusted: str = ""
    faulty_rank: int | None = None
    submissions: int = 1
    options: tuple[str, ...] = ()
    trainer: tuple[str, ...] = ()
    undisturbed_options: tuple[str, ...] = ()
    shrink_after: int = 0
    damaged_checkpoints: int = 0
    disk_mib: int = 0
    memory_mib: int = 0
    clock: bool = False
    elastic: bool = False

    @property
    def undisturbed(self) -> Scenario:
        """Return the same job without faults."""
        return Scenario(
            name="undisturbed",
            fault="none",
            moment="",
            mode=self.mode,
            ranks=self.ranks,
            trainer=self.undisturbed_options,
            hosts=1 if self.shrink_after else self.hosts,
            shrink_after=self.shrink_after,
        )
