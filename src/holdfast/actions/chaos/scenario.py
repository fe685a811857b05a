"""What a scenario is: a job, what is done to it, when, and what has to come of it. Plain data."""

from __future__ import annotations

import msgspec

STEPS = 30
SAVE_EVERY = 6
#: What the job's short sections may take, so that a hang in them is not waited out for the minutes of a real job.
PATIENCE = {"HOLDFAST_FIRST_STEP_S": "12", "HOLDFAST_CHECKPOINT_S": "15", "HOLDFAST_EVALUATION_S": "8"}


def named(*names: str) -> frozenset[str]:
    """A set of names."""
    return frozenset(names)


class Blow(msgspec.Struct, frozen=True, kw_only=True):
    """A fault from outside of the ranks: its kind (:data:`holdfast.actions.chaos.blows.BLOWS`), and when.

    It strikes ``delay_s`` seconds after a rank noted ``what`` ("step", "saving", "saved", "evaluated") at ``step`` or
    a later one; ``what`` "start" means as soon as the ranks are processes, "submitted" even before. ``host`` is the
    one that is struck, ``seconds`` by how much a clock jumps.
    """

    kind: str
    what: str = "step"
    step: int = 0
    delay_s: float = 0.0
    host: int = 1
    seconds: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One job that is hurt.

    ``ranks`` are those of all ``hosts`` together. ``options`` are of `holdfast run`, ``trainer`` of the job itself.
    ``causes`` are the names that the verdicts' roots may have, of which the first verdict must have one and every other
    too; empty where nothing fails. ``courses`` are the decisions that may follow, ``adjusted`` names what the last of
    them has to change. ``culprit`` is the rank that the first verdict names. ``starts`` is how often the job is
    submitted: more than once where the agent itself is lost. ``damaged`` is how many of the newest checkpoints a blow
    makes unusable. ``disk_mib`` is the size of a disk of their own for the checkpoints, ``memory_mib`` the limit on the
    memory of all its processes; 0 for none. ``clock`` says that its processes read a clock that can be moved.
    ``elastic``: hosts may come and go.

    ``peace`` is what the undisturbed job does otherwise than the one without faults (options of the trainer), and
    ``apart_at`` the step after which it goes on with one rank fewer: where the policy changes what is computed, the
    same has to be computed by a job in peace. Of such a scenario only what counts in the end is compared.
    """

    name: str
    fault: str
    moment: str
    mode: str = "ddp"
    ranks: int = 2
    hosts: int = 1
    inject: tuple[str, ...] = ()
    blows: tuple[Blow, ...] = ()
    causes: frozenset[str] = frozenset()
    courses: frozenset[str] = frozenset({"restart"})
    adjusted: str = ""
    culprit: int | None = None
    starts: int = 1
    options: tuple[str, ...] = ()
    trainer: tuple[str, ...] = ()
    peace: tuple[str, ...] = ()
    apart_at: int = 0
    damaged: int = 0
    disk_mib: int = 0
    memory_mib: int = 0
    clock: bool = False
    elastic: bool = False

    @property
    def calm(self) -> Scenario:
        """The same job, left in peace."""
        return Scenario(
            name="peace", fault="none", moment="", mode=self.mode, ranks=self.ranks, trainer=self.peace,
            hosts=1 if self.apart_at else self.hosts, apart_at=self.apart_at,
        )  # fmt: skip
