"""Scenarios with exhausted memory, disks, clocks and data loaders, and slower recovery paths."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.data.dataloader_worker_died import DATALOADER_WORKER_DIED
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.causes.process.exit_nonzero import EXIT_NONZERO
from holdfast.causes.process.python_exception_on_one_rank import PYTHON_EXCEPTION_ON_ONE_RANK
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.causes.process.rank_stopped import RANK_STOPPED
from holdfast.chaos.scenario import ExternalFault, Scenario, name_set

_KILLED = name_set(RANK_KILLED.name)
_FULL = (ExternalFault(kind="fill-disk", step=8), ExternalFault(kind="free-disk", step=21))
_HOUR_S = 3600.0


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios."""
    yield from _slow()
    yield from _exhausted_resources()
    yield from _clocks()
    yield from _recovery_paths()
    yield Scenario(
        name="storm",
        fault="several faults in a row",
        moment="throughout",
        faulty_rank=1,
        causes=name_set(
            RANK_KILLED.name,
            RANK_STOPPED.name,
            PYTHON_EXCEPTION_ON_ONE_RANK.name,
            EXIT_NONZERO.name,
        ),
        inject=(
            "sigkill@rank=1,step=5",
            "exception@rank=0,step=9,generation=1",
            "sigstop@rank=1,phase=checkpoint,generation=2",
            "exit@rank=0,step=3,generation=3",
        ),
    )


def _slow() -> Iterator[Scenario]:
    yield Scenario(name="slow-rank", fault="slow rank", inject=("slow@rank=1,step=10,seconds=0.3",))
    yield Scenario(
        name="slow-disk",
        fault="slow disk",
        moment="checkpoint",
        inject=("slow-disk@rank=0,step=4,seconds=0.3",),
    )


def _exhausted_resources() -> Iterator[Scenario]:
    yield Scenario(
        name="loader-killed",
        fault="loader worker killed",
        inject=("kill-loader@rank=1,step=16",),
        causes=name_set(DATALOADER_WORKER_DIED.name),
        faulty_rank=1,
        trainer=("--workers", "1"),
    )
    yield Scenario(
        name="host-memory",
        fault="host memory (cgroup)",
        faulty_rank=1,
        memory_mib=1600,
        inject=("fill-memory@rank=1,step=16",),
        causes=name_set(HOST_OOM_KILLED.name),
    )
    yield Scenario(
        name="disk-full",
        fault="disk full, then freed",
        moment="checkpoint",
        external_faults=_FULL,
        disk_mib=2,
        trainer=("--pace", "0.1"),
    )
    yield Scenario(
        name="disk-full-then-rank",
        fault="disk full, rank killed",
        moment="checkpoint",
        causes=_KILLED,
        faulty_rank=1,
        external_faults=(_FULL[0], ExternalFault(kind="kill-rank", step=15), _FULL[1]),
        disk_mib=2,
        trainer=("--pace", "0.1"),
    )


def _clocks() -> Iterator[Scenario]:
    for name, seconds in (("clock-jump", _HOUR_S), ("clock-jump-back", -_HOUR_S)):
        yield Scenario(
            name=name,
            fault=f"clock jump of all ranks, {seconds / _HOUR_S:+g} h",
            clock=True,
            external_faults=(ExternalFault(kind="move-clock", step=10, seconds=seconds),),
            trainer=("--pace", "0.1"),
        )
    for name, seconds in (("forward", _HOUR_S), ("back", -_HOUR_S)):
        yield Scenario(
            name=f"clock-{name}-then-rank",
            fault=f"clock jump of all ranks, {seconds / _HOUR_S:+g} h, rank killed",
            clock=True,
            causes=_KILLED,
            faulty_rank=1,
            external_faults=(
                ExternalFault(kind="move-clock", step=10, seconds=seconds),
                ExternalFault(kind="kill-rank", step=16),
            ),
            trainer=("--pace", "0.1"),
        )
    yield Scenario(
        name="clock-of-a-rank",
        fault="clock jump of one rank, +1 h",
        inject=("clock-jump@rank=1,step=10,seconds=3600",),
    )


def _recovery_paths() -> Iterator[Scenario]:
    for name, kind, causes in (
        ("sigkill", "sigkill@rank=1,step=16", _KILLED),
        ("exit-1", "exit@rank=1,step=16,code=1", name_set(EXIT_NONZERO.name)),
    ):
        yield Scenario(
            name=f"in-place-{name}",
            fault=f"{name}, in-process restart",
            inject=(kind,),
            causes=causes,
            faulty_rank=1,
            trainer=("--in-place",),
            expected_actions=name_set("replace"),
        )
    for name, kind, causes in (
        ("sigkill", "sigkill@rank=1,step=16", _KILLED),
        ("sigstop", "sigstop@rank=1,step=16", name_set(RANK_STOPPED.name)),
    ):
        yield Scenario(
            name=f"no-spares-{name}",
            fault=f"{name}, without standby workers",
            inject=(kind,),
            causes=causes,
            faulty_rank=1,
            options=("--spares", "off"),
        )
