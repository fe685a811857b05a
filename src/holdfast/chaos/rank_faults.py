"""Scenarios with faults inside a rank (``holdfast run --inject``), at each moment in each mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.causes.memory.oom_on_one_rank_then_timeout import OOM_ON_ONE_RANK_THEN_TIMEOUT
from holdfast.causes.process.exit_nonzero import EXIT_NONZERO
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.causes.process.stalled_outside_collectives import STALLED_OUTSIDE_COLLECTIVES
from holdfast.causes.sync.rank_exits_early import RANK_EXITS_EARLY
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.causes.sync.store_wait import STORE_WAIT
from holdfast.chaos.scenario import STEPS, Scenario, name_set


class InjectedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and the causes a correct verdict may name."""

    text: str
    causes: frozenset[str]
    at_start: frozenset[str] = frozenset()
    faulty_rank: int | None = 1
    trainer: tuple[str, ...] = ()


_RAISED = name_set(PYTHON_EXCEPTION_ON_ONE_RANK.name)
_STUCK = name_set(RANK_MISSING_COLLECTIVE.name, STALLED_OUTSIDE_COLLECTIVES.name)

INJECTED_FAULTS: Mapping[str, InjectedFault] = {
    "exception": InjectedFault(text="exception@rank=1", causes=_RAISED),
    "exit-0": InjectedFault(text="early-end@rank=1", causes=name_set(RANK_EXITS_EARLY.name)),
    "exit-1": InjectedFault(text="exit@rank=1,code=1", causes=name_set(EXIT_NONZERO.name)),
    "sigkill": InjectedFault(text="sigkill@rank=1", causes=name_set(RANK_KILLED.name)),
    "sigkill-rank-0": InjectedFault(
        text="sigkill@rank=0", causes=name_set(RANK_KILLED.name), faulty_rank=0
    ),
    "sigstop": InjectedFault(text="sigstop@rank=1", causes=name_set(RANK_STOPPED.name)),
    "hang": InjectedFault(text="hang@rank=1", causes=_STUCK, at_start=name_set(STORE_WAIT.name)),
    "device-memory": InjectedFault(
        text="device-oom@rank=1", causes=name_set(OOM_ON_ONE_RANK_THEN_TIMEOUT.name)
    ),
}
#: Moment -> trigger of the injected fault.
MOMENTS: Mapping[str, str] = {
    "start": "phase=start",
    "first-step": "step=1",
    "middle": f"step={STEPS // 2 + 1}",
    "checkpoint": "phase=checkpoint,visit=3",  # the first visit is the attempt to load
    "evaluation": "phase=evaluation,visit=2",
    "end": f"step={STEPS}",
}
#: Mode -> faults, each run at every moment on one host.
_EVERYWHERE = {
    "ddp": tuple(INJECTED_FAULTS),
    "fsdp2": tuple(INJECTED_FAULTS),
    "zero2": tuple(INJECTED_FAULTS),
}
#: (mode, hosts, faults) run only in the middle.
_MIDDLE = (
    ("zero1", 1, ("sigkill", "exception")),
    ("ddp", 2, ("sigkill", "sigkill-rank-0", "exception", "exit-0", "sigstop", "hang")),
    ("fsdp2", 2, ("sigkill", "sigkill-rank-0", "exception", "hang")),
    ("zero2", 2, ("sigkill", "hang")),
)


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios, those with few moments first."""
    for mode, hosts, faults in _MIDDLE:
        for name in faults:
            yield _scenario(name, "middle", mode, hosts)
    for mode, known in _EVERYWHERE.items():
        for name in known:
            for moment in MOMENTS:
                yield _scenario(name, moment, mode, 1)


def prefix(mode: str, hosts: int) -> str:
    """Return the start of a scenario's name."""
    return ("" if hosts == 1 else "two-hosts-") + ("" if mode == "ddp" else f"{mode}-")


def _scenario(name: str, moment: str, mode: str, hosts: int) -> Scenario:
    fault = INJECTED_FAULTS[name]
    return Scenario(
        name=f"{prefix(mode, hosts)}{name}-{moment}",
        fault=name,
        moment=moment,
        mode=mode,
        hosts=hosts,
        inject=(f"{fault.text},{MOMENTS[moment]}",),
        faulty_rank=fault.faulty_rank,
        trainer=(*fault.trainer, *(("--synchronous",) if moment == "checkpoint" else ())),
        causes=fault.causes | (fault.at_start if moment == "start" else frozenset()),
    )
