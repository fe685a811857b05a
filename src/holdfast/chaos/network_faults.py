"""Scenarios on two hosts in network namespaces: lost connections and lost hosts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from holdfast.causes.process.peer_lost import PEER_LOST
from holdfast.causes.process.rank_killed import RANK_KILLED
from holdfast.chaos.rank_faults import prefix
from holdfast.chaos.scenario import ExternalFault, Scenario, name_set

_two_hosts = partial(Scenario, hosts=2, trainer=("--pace", "0.1"))


def scenarios() -> Iterator[Scenario]:
    """Yield the scenarios."""
    for mode in ("ddp", "fsdp2"):
        for name, kind in (("one-way", "cut-in"), ("both-ways", "cut-both")):
            yield _two_hosts(
                name=f"{prefix(mode, 2)}cut-{name}",
                fault=f"network cut {name.replace('-', ' ')}, healed after 2 s",
                mode=mode,
                external_faults=(
                    ExternalFault(kind=kind, step=12),
                    ExternalFault(kind="heal", step=12, delay_s=2.0),
                ),
            )
        for name, host in (("leader", 0), ("other", 1)):
            yield _two_hosts(
                name=f"{prefix(mode, 2)}{name}-lost",
                fault=f"all processes of the {name} host killed",
                mode=mode,
                submissions=2,
                external_faults=(ExternalFault(kind="kill-host", step=15, host=host),),
                causes=name_set(PEER_LOST.name, RANK_KILLED.name),
                expected_actions=name_set("restart", "stop"),
            )
    for name, host in (("leader", 0), ("other", 1)):
        yield _two_hosts(
            name=f"two-hosts-kill-agent-{name}",
            fault=f"SIGKILL of the agent of the {name} host",
            submissions=2,
            external_faults=(ExternalFault(kind="kill-agent", step=15, host=host),),
            causes=name_set(PEER_LOST.name, RANK_KILLED.name),
            expected_actions=name_set("restart", "stop"),
        )
        yield _two_hosts(
            name=f"two-hosts-kill-watcher-{name}",
            fault=f"SIGKILL of the watcher of the {name} host",
            external_faults=(ExternalFault(kind="kill-watcher", step=12, host=host),),
        )
    yield Scenario(
        name="two-hosts-port-blocked",
        fault="port of the store blocked, free after 4 s",
        moment="start",
        hosts=2,
        external_faults=(
            ExternalFault(kind="block-port", what="submitted", host=0),
            ExternalFault(kind="heal", what="start", delay_s=4.0, host=0),
        ),
    )
    yield _two_hosts(
        name="two-hosts-ports-blocked",
        fault="ports of the ranks blocked, free after 8 s; a rank killed",
        causes=name_set(RANK_KILLED.name, PEER_LOST.name),
        faulty_rank=1,
        external_faults=(
            ExternalFault(kind="block-ranks", step=12, host=0),
            ExternalFault(kind="kill-rank", step=14),
            ExternalFault(kind="heal", step=14, delay_s=8.0, host=0),
        ),
    )
