"""The words of the policy: what failed, what the user allows, and what is done. Plain data, kept in the ledger."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.adjustments import NONE, Adjustments
from holdfast.facts.ranks import Trouble
from holdfast.findings import Fact, Level, Verdict

#: Exit status of a job that another start would not help, as of NVIDIA's resiliency extension: do not requeue.
DO_NOT_REQUEUE = 93


class OnHang(StrEnum):
    """What the user wants done about a hang (``--on-hang``)."""

    REPORT = "report"
    RESTART = "restart"
    STOP = "stop"


class Course(StrEnum):
    """What is done. ``EXCLUDE`` restarts without some nodes, ``REPLACE`` starts the dead ranks alone again."""

    RESTART = "restart"
    EXCLUDE = "exclude"
    REPLACE = "replace"
    STOP = "stop"
    REPORT = "report"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the user allows.

    ``restarts`` in all (``--max-restarts``), ``failures`` within ``window_s`` (None: any number), so many restarts in
    a row ``without_progress``; ``backoff_s`` before the second restart in a row, doubled for each after it. Hosts can
    be left out as long as ``least_nodes`` stay. ``skip_batches``: also a batch at which something else than the loss
    failed twice may be left out.
    """

    on_hang: OnHang = OnHang.RESTART
    restarts: int = 0
    failures: int | None = None
    window_s: float = 3600.0
    without_progress: int = 3
    backoff_s: float = 1.0
    exclude_stragglers: bool = False
    skip_batches: bool = False
    least_nodes: int = 1


class Scene(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was seen of the whole job when it failed, beside the verdict.

    ``step`` is the furthest of any rank, ``counted`` how many this start has done; where they are the same, the script
    may count from 0 at every start. ``saved`` is the step of the newest checkpoint that this start declared, ``loaded``
    that of the one it began from. ``hosts`` and ``nodes`` are by rank, as are ``namesakes``: what tells apart agents on
    hosts of one name. ``waiting`` nodes stand by. ``loaders`` is the
    most data-loader workers of a rank, ``trouble`` what ``holdfast.loop`` noted just before. ``preempted`` is the
    status with which ranks left because a scheduler warned them. ``in_place``: the survivors can take in a new rank.
    ``dead`` ranks ended with something else than 0.
    """

    step: int | None = None
    counted: int = 0
    saved: int | None = None
    loaded: int | None = None
    ran_s: float = 0.0
    hosts: dict[int, str] = {}
    nodes: dict[int, int] = {}
    namesakes: dict[int, str] = {}
    waiting: int = 0
    loaders: int | None = None
    trouble: Trouble | None = None
    preempted: int | None = None
    in_place: bool = False
    dead: tuple[int, ...] = ()


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One failure: when (Unix seconds), of which start of the workers, what the verdict says, and what was seen.

    ``cause`` is empty where there was no verdict. ``dead`` are ranks that ended with something else than 0.
    """

    at: float
    generation: int
    hang: bool = False
    code: str = ""
    cause: str = ""
    level: Level = Level.ERROR
    message: str = ""
    rank: int | None = None
    host: str | None = None
    file: str | None = None
    line: int | None = None
    evidence: tuple[Fact, ...] = ()
    dead: tuple[int, ...] = ()
    scene: Scene = Scene()

    @property
    def machine(self) -> tuple[str | None, str]:
        """What makes two failures those of one host: its name and, where others have it too, its agent."""
        return self.host, self.scene.namesakes.get(self.rank, "") if self.rank is not None else ""

    @property
    def root(self) -> tuple[object, ...]:
        """What makes two failures the same fault: the cause, and the line, or where there is none, host and rank.

        Whether one rank was seen to raise or all of them is a matter of a few milliseconds.
        """
        cause = "exception" if self.cause.startswith("python-exception-") else self.cause
        return (cause, self.file, self.line) if self.file else (cause, self.host, self.rank)


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is done, and why in a few words.

    ``adjustments`` hold for the coming start, ``reasons`` say one sentence for each that is new. ``excluded`` hosts,
    which are ``nodes`` of this generation, do not join again; ``suspects`` are hosts that will go at the next time.
    ``ranks`` are those that REPLACE starts again. The restart waits ``delay_s``. ``status`` is the exit status of a job
    that stops, None for torchrun's.
    """

    course: Course
    reason: str
    adjustments: Adjustments = NONE
    excluded: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    suspects: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    delay_s: float = 0.0
    status: int | None = None

    @property
    def restarts(self) -> bool:
        """Whether the job goes on with other processes."""
        return self.course in (Course.RESTART, Course.EXCLUDE, Course.REPLACE)


class Past(msgspec.Struct, frozen=True):
    """One failure and what was done about it."""

    failure: Failure
    decision: Decision


def failure(
    verdict: Verdict | None, *, at: float, generation: int, hang: bool = False, dead: tuple[int, ...] = (),
    scene: Scene | None = None,
) -> Failure:  # fmt: skip
    """A failure from its verdict, which is None where none could be had."""
    root = verdict.root if verdict is not None else None
    seen = scene or Scene()
    dead = tuple(sorted({*dead, *seen.dead}))
    if root is None:
        return Failure(at=at, generation=generation, hang=hang, dead=dead, scene=seen)
    subject = root.subject
    host = subject.host or (seen.hosts.get(subject.rank) if subject.rank is not None else None)
    return Failure(
        at=at, generation=generation, hang=hang, code=root.code, cause=root.cause, level=root.level,
        message=root.message, rank=subject.rank, host=host, file=subject.file, line=subject.line,
        evidence=root.evidence, dead=dead, scene=seen,
    )  # fmt: skip
