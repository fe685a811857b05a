"""Memory, disks, processors, clocks and data loaders that give out; and recovery without what makes it fast."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.actions.chaos.scenario import Blow, Scenario, named

_KILLED = named("rank-killed")
_FULL = (Blow(kind="fill-disk", step=8), Blow(kind="free-disk", step=21))
_HOUR_S = 3600.0


def scenarios() -> Iterator[Scenario]:
    """All of them."""
    yield from _slow()
    yield from _used_up()
    yield from _clocks()
    yield from _ways_back()
    yield Scenario(
        name="storm", fault="storm of several", moment="all along", culprit=1,
        causes=named("rank-killed", "rank-stopped", "python-exception-on-one-rank", "exit-nonzero"),
        inject=(
            "sigkill@rank=1,step=5", "exception@rank=0,step=9,generation=1",
            "sigstop@rank=1,phase=checkpoint,generation=2", "exit@rank=0,step=3,generation=3",
        ),
    )  # fmt: skip


def _slow() -> Iterator[Scenario]:
    yield Scenario(name="slow-rank", fault="slow rank", moment="middle", inject=("slow@rank=1,step=10,seconds=0.3",))
    yield Scenario(
        name="slow-disk", fault="slow disk", moment="checkpoint", inject=("slow-disk@rank=0,step=4,seconds=0.3",)
    )


def _used_up() -> Iterator[Scenario]:
    yield Scenario(
        name="loader-killed", fault="loader worker killed", moment="middle", inject=("kill-loader@rank=1,step=16",),
        causes=named("dataloader-worker-died"), culprit=1, trainer=("--workers", "1"),
    )  # fmt: skip
    yield Scenario(
        name="host-memory", fault="host memory (control group)", moment="middle", culprit=1, memory_mib=1600,
        inject=("fill-memory@rank=1,step=16",), causes=named("host-oom-killed"),
    )  # fmt: skip
    yield Scenario(
        name="disk-full", fault="disk full, and free again", moment="checkpoint", blows=_FULL, disk_mib=2,
        trainer=("--pace", "0.1"),
    )  # fmt: skip
    yield Scenario(
        name="disk-full-then-rank", fault="disk full, and a rank killed", moment="checkpoint", causes=_KILLED,
        culprit=1, blows=(_FULL[0], Blow(kind="kill-rank", step=15), _FULL[1]), disk_mib=2, trainer=("--pace", "0.1"),
    )  # fmt: skip


def _clocks() -> Iterator[Scenario]:
    for name, seconds in (("clock-jump", _HOUR_S), ("clock-jump-back", -_HOUR_S)):
        yield Scenario(
            name=name, fault=f"clock jump of all, {seconds / _HOUR_S:+g} h", moment="middle", clock=True,
            blows=(Blow(kind="move-clock", step=10, seconds=seconds),), trainer=("--pace", "0.1"),
        )  # fmt: skip
    for name, seconds, causes in (("forward", _HOUR_S, _KILLED), ("back", -_HOUR_S, _KILLED)):
        yield Scenario(
            name=f"clock-{name}-then-rank", fault=f"clock jump of all, {seconds / _HOUR_S:+g} h, and a rank killed",
            moment="middle", clock=True, causes=causes, culprit=1,
            blows=(Blow(kind="move-clock", step=10, seconds=seconds), Blow(kind="kill-rank", step=16)),
            trainer=("--pace", "0.1"),
        )  # fmt: skip
    yield Scenario(
        name="clock-of-a-rank", fault="clock jump of one rank, +1 h", moment="middle",
        inject=("clock-jump@rank=1,step=10,seconds=3600",),
    )  # fmt: skip


def _ways_back() -> Iterator[Scenario]:
    for name, kind, causes in (
        ("sigkill", "sigkill@rank=1,step=16", _KILLED), ("exit-1", "exit@rank=1,step=16,code=1", named("exit-nonzero")),
    ):  # fmt: skip
        yield Scenario(
            name=f"in-place-{name}", fault=f"{name}, recovery in place", moment="middle", inject=(kind,),
            causes=causes, culprit=1, trainer=("--in-place",), courses=named("replace"),
        )  # fmt: skip
    for name, kind, causes in (
        ("sigkill", "sigkill@rank=1,step=16", _KILLED), ("sigstop", "sigstop@rank=1,step=16", named("rank-stopped")),
    ):  # fmt: skip
        yield Scenario(
            name=f"no-spares-{name}", fault=f"{name}, without spares", moment="middle", inject=(kind,),
            causes=causes, culprit=1, options=("--spares", "off"),
        )  # fmt: skip
