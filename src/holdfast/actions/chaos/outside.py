"""Faults from outside of the ranks: agents, watchers and machines that are lost, and files that are damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.actions.chaos.scenario import STEPS, Blow, Scenario, named

_KILLED = named("rank-killed")
DAMAGE = ("flip", "truncate", "lose", "lose-manifest")
#: Moment -> when a fault from outside strikes.
OUTSIDE: Mapping[str, tuple[str, int]] = {
    "start": ("start", 0), "first-step": ("step", 1), "middle": ("step", STEPS // 2), "checkpoint": ("saving", 12),
    "evaluation": ("evaluating", 16), "end": ("step", STEPS),
}  # fmt: skip


def scenarios() -> Iterator[Scenario]:
    """All of them."""
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
    yield Scenario(
        name="watcher-then-rank", fault="watcher killed, then a rank", moment="middle", causes=_KILLED, culprit=1,
        blows=(Blow(kind="kill-watcher", step=10), Blow(kind="kill-rank", step=15, delay_s=3.0)),
        trainer=("--pace", "0.3"),
    )  # fmt: skip
    for mode in ("ddp", "fsdp2", "zero2"):
        prefix = "" if mode == "ddp" else f"{mode}-"
        yield Scenario(
            name=f"{prefix}preemption", fault="preemption, 5 s of grace", moment="middle", mode=mode, starts=2,
            blows=(Blow(kind="warn", step=15), Blow(kind="power-off", step=15, delay_s=5.0)), courses=named("stop"),
        )  # fmt: skip
        yield Scenario(
            name=f"{prefix}power-off", fault="machine lost", moment="middle", mode=mode, starts=2,
            blows=(Blow(kind="power-off", step=15),),
        )  # fmt: skip
