"""Faults that a rank inflicts on itself (``holdfast run --inject``), at each moment, in each mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.actions.chaos.scenario import STEPS, Scenario, named


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and what it may rightly be called."""

    text: str
    causes: frozenset[str]
    at_start: frozenset[str] = frozenset()
    culprit: int | None = 1
    trainer: tuple[str, ...] = ()


_RAISED = named("python-exception-on-one-rank")
_STUCK = named("rank-missing-collective", "stalled-outside-collectives")

INSIDE: Mapping[str, Inside] = {
    "exception": Inside(text="exception@rank=1", causes=_RAISED),
    "exit-0": Inside(text="early-end@rank=1", causes=named("rank-exits-early")),
    "exit-1": Inside(text="exit@rank=1,code=1", causes=named("exit-nonzero")),
    "sigkill": Inside(text="sigkill@rank=1", causes=named("rank-killed")),
    "sigkill-rank-0": Inside(text="sigkill@rank=0", causes=named("rank-killed"), culprit=0),
    "sigstop": Inside(text="sigstop@rank=1", causes=named("rank-stopped")),
    "hang": Inside(text="hang@rank=1", causes=_STUCK, at_start=named("store-wait")),
    "device-memory": Inside(text="device-oom@rank=1", causes=named("oom-on-one-rank-then-timeout")),
}
#: Moment -> when such a fault strikes.
MOMENTS: Mapping[str, str] = {
    "start": "phase=start",
    "first-step": "step=1",
    "middle": f"step={STEPS // 2 + 1}",
    "checkpoint": "phase=checkpoint,visit=3",  # the first is the loading of none
    "evaluation": "phase=evaluation,visit=2",
    "end": f"step={STEPS}",
}
#: Mode -> hosts -> the faults that are played there, each at every moment.
_EVERYWHERE = {"ddp": tuple(INSIDE), "fsdp2": tuple(INSIDE), "zero2": tuple(INSIDE)}
#: Where a fault in the middle is enough: mode, hosts, faults.
_MIDDLE = (
    ("zero1", 1, ("sigkill", "exception")),
    ("ddp", 2, ("sigkill", "sigkill-rank-0", "exception", "exit-0", "sigstop", "hang")),
    ("fsdp2", 2, ("sigkill", "sigkill-rank-0", "exception", "hang")),
    ("zero2", 2, ("sigkill", "hang")),
)


def scenarios() -> Iterator[Scenario]:
    """All of them: at first what few moments are enough for."""
    for mode, hosts, faults in _MIDDLE:
        for name in faults:
            yield _scenario(name, "middle", mode, hosts)
    for mode, known in _EVERYWHERE.items():
        for name in known:
            for moment in MOMENTS:
                yield _scenario(name, moment, mode, 1)


def prefix(mode: str, hosts: int) -> str:
    """What the name of a scenario begins with."""
    return ("" if hosts == 1 else "two-hosts-") + ("" if mode == "ddp" else f"{mode}-")


def _scenario(name: str, moment: str, mode: str, hosts: int) -> Scenario:
    fault = INSIDE[name]
    return Scenario(
        name=f"{prefix(mode, hosts)}{name}-{moment}", fault=name, moment=moment, mode=mode, hosts=hosts,
        inject=(f"{fault.text},{MOMENTS[moment]}",), culprit=fault.culprit,
        trainer=(*fault.trainer, *(("--synchronous",) if moment == "checkpoint" else ())),
        causes=fault.causes | (fault.at_start if moment == "start" else frozenset()),
    )  # fmt: skip
