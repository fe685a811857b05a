"""Scenarios with lost agents, watchers and machines, and damaged files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.chaos.rank_faults import prefix
from holdfast.chaos.scenario import STEPS, ExternalFault, Scenario, name_set

_KILLED = name_set(RANK_KILLED.name)
DAMAGE = ("flip", "truncate", "lose", "lose-manifest")
#: Moment -> (trace record, step) that triggers an external fault.
TRIGGERS: Mapping[str, tuple[str, int]] = {
    "start": ("start", 0),
    "first-step": ("step", 1),
    "middle": ("step", STEPS // 2),
    "checkpoint": ("saving", 12),
    "evaluation": ("evaluating", 16),
    "end": ("step", STEPS),
}


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios."""
    for moment, (what, step) in TRIGGERS.items():
        for kind, submissions in (("kill-agent", 2), ("kill-watcher", 1)):
            yield Scenario(
                name=f"{kind}-{moment}",
                fault=f"SIGKILL of the {kind.removeprefix('kill-')}",
                moment=moment,
                external_faults=(ExternalFault(kind=kind, what=what, step=step),),
                submissions=submissions,
            )
    for kind in DAMAGE:
        yield Scenario(
            name=f"{kind}-checkpoint",
            fault=f"newest checkpoint: {kind}",
            damaged_checkpoints=1,
            external_faults=(ExternalFault(kind=kind, what="saved", step=12),),
            causes=_KILLED,
            faulty_rank=1,
        )
    yield Scenario(
        name="watcher-then-rank",
        fault="watcher killed, then a rank",
        causes=_KILLED,
        faulty_rank=1,
        external_faults=(
            ExternalFault(kind="kill-watcher", step=10),
            ExternalFault(kind="kill-rank", step=15, delay_s=3.0),
        ),
        trainer=("--pace", "0.3"),
    )
    for mode in ("ddp", "fsdp2", "zero2"):
        yield Scenario(
            name=f"{prefix(mode, 1)}preemption",
            fault="preemption, 5 s of grace",
            mode=mode,
            submissions=2,
            external_faults=(
                ExternalFault(kind="warn", step=15),
                ExternalFault(kind="power-off", step=15, delay_s=5.0),
            ),
            expected_actions=name_set("stop"),
        )
        yield Scenario(
            name=f"{prefix(mode, 1)}power-off",
            fault="machine lost",
            mode=mode,
            submissions=2,
            external_faults=(ExternalFault(kind="power-off", step=15),),
        )
