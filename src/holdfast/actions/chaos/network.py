"""Two hosts in name spaces of their own: the network between them, and the hosts themselves, are lost."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.actions.chaos.inside import prefix
from holdfast.actions.chaos.scenario import Blow, Scenario, named

_PACE = ("--pace", "0.1")


def scenarios() -> Iterator[Scenario]:
    """All of them."""
    for mode in ("ddp", "fsdp2"):
        for name, kind in (("one-way", "cut-in"), ("both-ways", "cut-both")):
            yield Scenario(
                name=f"{prefix(mode, 2)}cut-{name}", fault=f"network cut {name.replace('-', ' ')}, healed after 2 s",
                moment="middle", mode=mode, hosts=2, trainer=_PACE,
                blows=(Blow(kind=kind, step=12), Blow(kind="heal", step=12, delay_s=2.0)),
            )  # fmt: skip
        for name, host in (("leader", 0), ("other", 1)):
            yield Scenario(
                name=f"{prefix(mode, 2)}{name}-lost", fault=f"all processes of the {name} host killed", mode=mode,
                moment="middle", hosts=2, starts=2, trainer=_PACE, blows=(Blow(kind="kill-host", step=15, host=host),),
                causes=named("peer-lost", "rank-killed"), courses=named("restart", "stop"),
            )  # fmt: skip
    for name, host in (("leader", 0), ("other", 1)):
        yield Scenario(
            name=f"two-hosts-kill-agent-{name}", fault=f"SIGKILL of the agent of the {name} host", moment="middle",
            hosts=2, starts=2, trainer=_PACE, blows=(Blow(kind="kill-agent", step=15, host=host),),
            causes=named("peer-lost", "rank-killed"), courses=named("restart", "stop"),
        )  # fmt: skip
        yield Scenario(
            name=f"two-hosts-kill-watcher-{name}", fault=f"SIGKILL of the watcher of the {name} host", moment="middle",
            hosts=2, trainer=_PACE, blows=(Blow(kind="kill-watcher", step=12, host=host),),
        )  # fmt: skip
    yield Scenario(
        name="two-hosts-port-blocked", fault="port of the store blocked, free after 4 s", moment="start", hosts=2,
        blows=(
            Blow(kind="block-port", what="submitted", host=0), Blow(kind="heal", what="start", delay_s=4.0, host=0),
        ),
    )  # fmt: skip
    yield Scenario(
        name="two-hosts-ports-blocked", fault="ports of the ranks blocked, free after 8 s; a rank killed",
        moment="middle", hosts=2, trainer=_PACE, causes=named("rank-killed", "peer-lost"), culprit=1,
        blows=(Blow(kind="block-ranks", step=12, host=0), Blow(kind="kill-rank", step=14),
               Blow(kind="heal", step=14, delay_s=8.0, host=0)),
    )  # fmt: skip
