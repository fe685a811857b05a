"""What is done to a job, when, and what has to come of it: faults x moments x modes, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.errors import UnknownName

STEPS = 30
SAVE_EVERY = 6
#: What the job's short sections may take, so that a hang in them is not waited out for the minutes of a real job.
PATIENCE = {"HOLDFAST_FIRST_STEP_S": "12", "HOLDFAST_CHECKPOINT_S": "15", "HOLDFAST_EVALUATION_S": "8"}


class Blow(msgspec.Struct, frozen=True, kw_only=True):
    """A fault from outside of the ranks: its kind (:data:`holdfast.actions.chaos.blows.BLOWS`), and when.

    It strikes ``delay_s`` seconds after a rank noted ``what`` ("step", "saving", "saved", "evaluated") at ``step`` or
    a later one; ``what`` "start" means as soon as the ranks are processes.
    """

    kind: str
    what: str = "step"
    step: int = 0
    delay_s: float = 0.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One job that is hurt.

    ``causes`` are the names that the verdicts' roots may have, of which the first verdict must have one and every other
    too; empty where nothing fails. ``culprit`` is the rank that the first verdict names. ``starts`` is how often the
    job is submitted: more than once where the agent itself is lost. ``damaged`` is how many of the newest checkpoints a
    blow makes unusable. ``disk_mib`` is the size of a disk of their own for the checkpoints, ``memory_mib`` the limit
    on the memory of all its processes; 0 for none.
    """

    name: str
    fault: str
    moment: str
    mode: str = "ddp"
    ranks: int = 2
    inject: tuple[str, ...] = ()
    blows: tuple[Blow, ...] = ()
    causes: frozenset[str] = frozenset()
    culprit: int | None = None
    starts: int = 1
    trainer: tuple[str, ...] = ()
    damaged: int = 0
    disk_mib: int = 0
    memory_mib: int = 0


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that a rank inflicts on itself (``holdfast run --inject``), and what it may rightly be called."""

    text: str
    causes: frozenset[str]
    at_start: frozenset[str] = frozenset()
    culprit: int | None = 1
    trainer: tuple[str, ...] = ()


def _named(*names: str) -> frozenset[str]:
    return frozenset(names)


_RAISED = _named("python-exception-on-one-rank")
_STUCK = _named("rank-missing-collective", "stalled-outside-collectives")

INSIDE: Mapping[str, Inside] = {
    "exception": Inside(text="exception@rank=1", causes=_RAISED),
    "exit-0": Inside(text="early-end@rank=1", causes=_named("rank-exits-early")),
    "exit-1": Inside(text="exit@rank=1,code=1", causes=_named("exit-nonzero")),
    "sigkill": Inside(text="sigkill@rank=1", causes=_named("rank-killed")),
    "sigkill-rank-0": Inside(text="sigkill@rank=0", causes=_named("rank-killed"), culprit=0),
    "sigstop": Inside(text="sigstop@rank=1", causes=_named("rank-stopped")),
    "hang": Inside(text="hang@rank=1", causes=_STUCK, at_start=_named("store-wait")),
    "device-memory": Inside(text="device-oom@rank=1", causes=_named("oom-on-one-rank-then-timeout")),
}
#: Faults of which one moment is enough: scenario -> what differs from the others.
MORE: Mapping[str, Scenario] = {
    "loader-killed": Scenario(
        name="",
        fault="loader worker killed",
        moment="middle",
        inject=("kill-loader@rank=1,step=16",),
        causes=_named("dataloader-worker-died"),
        culprit=1,
        trainer=("--workers", "1"),
    ),
    "host-memory": Scenario(
        name="",
        fault="host memory (control group)",
        moment="middle",
        inject=("fill-memory@rank=1,step=16",),
        causes=_named("host-oom-killed"),
        culprit=1,
        memory_mib=1600,
    ),
    "slow-rank": Scenario(name="", fault="slow rank", moment="middle", inject=("slow@rank=1,step=10,seconds=0.3",)),
    "slow-disk": Scenario(
        name="", fault="slow disk", moment="checkpoint", inject=("slow-disk@rank=0,step=4,seconds=0.3",)
    ),
    "clock-jump": Scenario(
        name="", fault="clock jump", moment="middle", inject=("clock-jump@rank=1,step=10,seconds=3600",)
    ),
    "clock-jump-back": Scenario(
        name="", fault="clock jump", moment="middle", inject=("clock-jump@rank=1,step=10,seconds=-3600",)
    ),
    "preemption": Scenario(
        name="",
        fault="preemption, 5 s of grace",
        moment="middle",
        starts=2,
        blows=(Blow(kind="warn", step=15), Blow(kind="power-off", step=15, delay_s=5.0)),
    ),
    "power-off": Scenario(
        name="", fault="machine lost", moment="middle", starts=2, blows=(Blow(kind="power-off", step=15),)
    ),
    "watcher-then-rank": Scenario(
        name="",
        fault="watcher killed, then a rank",
        moment="middle",
        causes=_named("rank-killed"),
        blows=(Blow(kind="kill-watcher", step=10), Blow(kind="kill-rank", step=15)),
    ),
    "storm": Scenario(
        name="",
        fault="storm of several",
        moment="all along",
        causes=_named("rank-killed", "rank-stopped", "python-exception-on-one-rank", "exit-nonzero"),
        culprit=1,
        inject=(
            "sigkill@rank=1,step=5",
            "exception@rank=0,step=9,generation=1",
            "sigstop@rank=1,phase=checkpoint,generation=2",
            "exit@rank=0,step=3,generation=3",
        ),
    ),
}
_KILLED = _named("rank-killed")
DAMAGE = ("flip", "truncate", "lose", "lose-manifest")

#: Moment -> when a fault inside of a rank strikes.
MOMENTS: Mapping[str, str] = {
    "start": "phase=start",
    "first-step": "step=1",
    "middle": f"step={STEPS // 2 + 1}",
    "checkpoint": "phase=checkpoint,visit=3",  # the first is the loading of none
    "evaluation": "phase=evaluation,visit=2",
    "end": f"step={STEPS}",
}

#: Moment -> when a fault from outside strikes.
OUTSIDE: Mapping[str, tuple[str, int]] = {
    "start": ("start", 0), "first-step": ("step", 1), "middle": ("step", STEPS // 2), "checkpoint": ("saving", 12),
    "evaluation": ("evaluating", 16), "end": ("step", STEPS),
}  # fmt: skip

MODES = ("ddp", "fsdp2")


def _inside() -> Iterator[Scenario]:
    for mode in MODES:
        prefix = "" if mode == "ddp" else f"{mode}-"
        for name, fault in INSIDE.items():
            for moment, when in MOMENTS.items():
                yield Scenario(
                    name=f"{prefix}{name}-{moment}", fault=name, moment=moment, mode=mode,
                    inject=(f"{fault.text},{when}",), culprit=fault.culprit,
                    trainer=(*fault.trainer, *(("--synchronous",) if moment == "checkpoint" else ())),
                    causes=fault.causes | (fault.at_start if moment == "start" else frozenset()),
                )  # fmt: skip


def _outside() -> Iterator[Scenario]:
    for moment, (what, step) in OUTSIDE.items():
        for kind, starts in (("kill-agent", 2), ("kill-watcher", 1)):
            yield Scenario(
                name=f"{kind}-{moment}", fault=f"SIGKILL of the {kind.removeprefix('kill-')}", moment=moment,
                blows=(Blow(kind=kind, what=what, step=step),), starts=starts,
            )  # fmt: skip
    for kind in DAMAGE:
        yield Scenario(
            name=f"{kind}-checkpoint", fault=f"newest checkpoint: {kind}", moment="middle", damaged=1,
            blows=(Blow(kind=kind, what="saved", step=12),), causes=_KILLED, culprit=1,
        )  # fmt: skip


#: Every scenario by its name.
SCENARIOS: Mapping[str, Scenario] = {
    **{each.name: each for each in (*_inside(), *_outside())},
    **{name: replace(each, name=name) for name, each in MORE.items()},
}


def find(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        UnknownName: there is none; says which are near.
    """
    if name not in SCENARIOS:
        error = UnknownName("scenario", name, SCENARIOS)
        if not error.near:
            error.next_step = "`holdfast chaos run --list` lists them"
        raise error
    return SCENARIOS[name]
