"""The summary of some ranks at one moment: each node reports one, and the leader combines them."""

from __future__ import annotations

import base64
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from holdfast.core.findings import Fact, Finding
from holdfast.core.live_state import CallLatency, NodeReading
from holdfast.core.rank_table import GroupTiming, ProcessGroupInfo, ProcessState, RankState

_Runs = tuple[tuple[int, int, int], ...]
#: A group with more members is a damaged message.
MAX_MEMBERS = 1 << 20
#: Maximum size of a message once it is decompressed.
MAX_BYTES = 64 << 20


class JobSummary(msgspec.Struct, frozen=True):
    """State of some ranks at one moment.

    ``silent_since`` is when any of them last advanced, in Unix seconds. ``health`` holds findings
    about the hosts (in a summary of the whole job: of the other nodes). ``agent`` identifies the
    agent of this node, also among hosts that share a name. ``nodes`` and ``latencies`` are shown
    only. ``timings`` are those of collectives, by node and group.
    """

    ranks: tuple[RankState, ...]
    groups: dict[str, ProcessGroupInfo]
    world_size: int
    silent_since: float
    time: float
    facts: tuple[Fact, ...] = ()
    health: tuple[Finding, ...] = ()
    agent: str = ""
    nodes: tuple[NodeReading, ...] = ()
    latencies: tuple[CallLatency, ...] = ()
    timings: tuple[GroupTiming, ...] = ()


def encode_summary(summary: JobSummary) -> str:
    """Return the summary as text, for the store of the job."""
    groups = {
        name: replace(group, ranks=None, runs=rank_runs(group.ranks)) if group.ranks else group
        for name, group in summary.groups.items()
    }
    data = msgspec.msgpack.encode(replace(summary, groups=groups))
    return base64.b64encode(zlib.compress(data, 1)).decode()


def decode_summary(text: str) -> JobSummary:
    """Decode :func:`encode_summary`. Raises ValueError or msgspec.DecodeError."""
    try:
        data = zlib.decompressobj().decompress(base64.b64decode(text), MAX_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    summary = msgspec.msgpack.decode(data, type=JobSummary)
    groups = {
        name: replace(group, ranks=_members(group.runs), runs=()) if group.runs else group
        for name, group in summary.groups.items()
    }
    return replace(summary, groups=groups)


#: By identity of the members, which the entry keeps alive: hashing 16,384 ranks takes 0.5 ms.
_runs_cache: dict[int, tuple[tuple[int, ...], _Runs]] = {}
_MAX_CACHED = 1024


def rank_runs(ranks: tuple[int, ...]) -> _Runs:
    """Return first rank, distance and number of each run of ``ranks`` in which they are equal."""
    cached = _runs_cache.get(id(ranks))
    if cached is None:
        if len(_runs_cache) >= _MAX_CACHED:
            _runs_cache.clear()
        cached = _runs_cache[id(ranks)] = ranks, _runs(ranks)
    return cached[1]


def _runs(ranks: tuple[int, ...]) -> _Runs:
    runs: list[tuple[int, int, int]] = []
    for rank in ranks:
        if runs:
            first, distance, count = runs[-1]
            if count == 1 or rank == first + distance * count:
                runs[-1] = first, (rank - first) // count, count + 1
                continue
        runs.append((rank, 1, 1))
    return tuple(runs)


@lru_cache(maxsize=4096)
def _members(runs: _Runs) -> tuple[int, ...]:
    """Return the ranks of ``runs``: the same tuple for all nodes. Raises ValueError."""
    if sum(max(count, 0) for *_, count in runs) > MAX_MEMBERS:
        raise ValueError(f"a group of more than {MAX_MEMBERS} ranks")
    return tuple(first + distance * at for first, distance, count in runs for at in range(count))


def agree_on_groups(
    observed: Sequence[tuple[RankState, Mapping[str, ProcessGroupInfo]]],
) -> tuple[dict[str, ProcessGroupInfo], list[RankState]]:
    """Merge the process groups of all ranks into one table.

    A name that ranks use for different members gets the members appended: after some ranks alone
    called ``new_group``, the counters in the names differ.
    """
    members: dict[str, dict[int, tuple[int, ...]]] = defaultdict(dict)
    for _, groups in observed:
        for name, group in groups.items():
            if group.ranks is not None:  # by identity: hashing 16,384 ranks takes long
                members[name][id(group.ranks)] = group.ranks
    ambiguous = {
        name for name, found in members.items() if len(found) > 1 and len({*found.values()}) > 1
    }
    table: dict[str, ProcessGroupInfo] = {}
    states = []
    for state, groups in observed:
        renamed = {name: f"{name} of {groups[name].ranks}" for name in ambiguous if name in groups}
        for name, group in groups.items():
            key = renamed.get(name, name)
            if key not in table or table[key].ranks is None:
                table[key] = replace(group, name=key)
        states.append(_rename_groups(state, renamed) if renamed else state)
    return table, states


def _rename_groups(state: RankState, names: Mapping[str, str]) -> RankState:
    return replace(
        state,
        groups={names.get(name, name): progress for name, progress in state.groups.items()},
        pending=tuple(
            replace(call, group=names.get(call.group, call.group)) for call in state.pending
        ),
        recent=tuple(
            replace(call, group=names.get(call.group, call.group)) for call in state.recent
        ),
    )


def _mark_outdated(state: RankState, age_s: float) -> RankState:
    """Mark a rank of an unreachable node: its process state is unknown unless it had ended."""
    life = ProcessState.UNKNOWN if state.life == ProcessState.RUNNING else state.life
    return replace(
        state,
        life=life,
        node_silent_s=age_s,
        unseen=(*state.unseen, f"its node last reported {age_s:.0f} s ago"),
    )


def unreachable_node(
    ranks: Iterable[int], host: str, world_size: int, silent_s: float
) -> JobSummary:
    """Return the last summary of a node of which only the ranks and the host are known."""
    states = (RankState(rank=rank, host=host, life=ProcessState.RUNNING) for rank in ranks)
    return JobSummary(tuple(states), {}, world_size, 0.0, time.time() - silent_s, agent=host)


def mark_node(summary: JobSummary) -> JobSummary:
    """Return ``summary`` with the name of its node in all its ranks."""
    name = summary.agent or "own"
    if all(state.node == name for state in summary.ranks):
        return summary
    return replace(summary, ranks=tuple(replace(state, node=name) for state in summary.ranks))


def combine_summaries(summaries: Sequence[JobSummary], now: float, max_age_s: float) -> JobSummary:
    """Combine the summaries of all nodes; mark the ranks of nodes that stopped reporting."""
    states: list[RankState] = []
    groups: dict[str, ProcessGroupInfo] = {}
    for summary in summaries:
        age_s = now - summary.time
        ranks = mark_node(summary).ranks if len(summaries) > 1 else summary.ranks
        states += [_mark_outdated(state, age_s) if age_s > max_age_s else state for state in ranks]
        groups |= {
            name: group
            for name, group in summary.groups.items()
            if name not in groups or groups[name].ranks is None
        }
    first = summaries[0]
    newest = max(summary.silent_since for summary in summaries)
    states.sort(key=lambda state: state.rank)
    health = tuple(finding for summary in summaries for finding in summary.health)
    timings = tuple(timing for summary in summaries for timing in summary.timings)
    return JobSummary(
        tuple(states),
        groups,
        first.world_size,
        newest,
        now,
        first.facts,
        health,
        timings=timings,
        nodes=tuple(_name_nodes(summaries)),
        latencies=tuple(each for summary in summaries for each in summary.latencies),
    )


def _name_nodes(summaries: Sequence[JobSummary]) -> Iterable[NodeReading]:
    """Yield the readings of the nodes, with the node names of the ranks."""
    for summary in summaries:
        name = (summary.agent or "own") if len(summaries) > 1 else ""
        for reading in summary.nodes:
            yield replace(reading, node=name)
