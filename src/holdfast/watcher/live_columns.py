"""Builds the live state of a job from its summary. Pure: no clock, no files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from holdfast.core.findings import Finding
from holdfast.core.live_state import (
    NONE,
    SERIES_FULL,
    SERIES_ROWS,
    SERIES_UNKNOWN,
    CallLatency,
    LiveCall,
    LiveFinding,
    LiveGroup,
    LiveState,
    LiveWait,
    NodeReading,
    RankColumns,
    SeriesPoint,
)
from holdfast.core.rank_sets import compress_ranks
from holdfast.core.rank_table import ProcessGroupInfo, ProcessState, RankState, RecordedCall
from holdfast.core.text import shorten
from holdfast.watcher.job_summary import JobSummary, rank_runs
from holdfast.watcher.rules.wait_for_graph import STORE_CALLS, build_wait_graph

MAX_NODES, MAX_CALLS, MAX_WAITS, MAX_GROUPS, MAX_LATENCIES, MAX_FINDINGS = (
    4096,
    4096,
    64,
    128,
    64,
    32,
)
MAX_TEXT = 300
#: Runs of ranks by which the members of a group are described.
MAX_RUNS = 64
#: A wait that is shorter is normal and gone when it is shown.
SHOWN_WAIT_S = 1.0
#: Calls in the store of the job, which the recorder lists as groups of their name.
NO_GROUPS = STORE_CALLS | {"destroy_process_group"}
LIVES = tuple(state.value for state in ProcessState)
_MIB = 1 << 20

#: A rank's call: group, sequence number and operation.
_CallKey = tuple[str, int, str]


class _Numbering:
    """Numbers texts or keys in the order of their first use, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.numbers: dict[Any, int] = {}
        self.cut = 0
        self._limit = limit

    def number(self, key: Any) -> int:
        """Return the number of ``key``; NONE beyond the limit."""
        found = self.numbers.get(key)
        if found is not None:
            return found
        if len(self.numbers) >= self._limit:
            self.cut += 1
            return NONE
        return self.numbers.setdefault(key, len(self.numbers))


def build_live_state(
    table: JobSummary, rates: Mapping[int, float], findings: Sequence[Finding]
) -> LiveState:
    """Return the state of ``table``; ``rates`` are steps per second by rank.

    The caller adds what the table lacks: generation, job, writer, period.
    """
    nodes, calls, phases = _Numbering(MAX_NODES), _Numbering(MAX_CALLS), _Numbering(MAX_CALLS)
    first_entered: dict[_CallKey, RecordedCall] = {}
    columns: dict[str, list[Any]] = {name: [] for name in RankColumns.__struct_fields__}
    gpu_of = {
        (reading.node, pid): gpu.index
        for reading in table.nodes
        for gpu in reading.gpus
        for pid in gpu.pids
    }
    waits, wait_of, awaited_by = _waits(table, calls, first_entered)
    for state in table.ranks:
        call = current_call(state)
        key = None if call is None else _key(call)
        if call is not None and key is not None:
            known = first_entered.get(key)
            if known is None or call.entered < known.entered:
                first_entered[key] = call
        row = (
            state.rank,
            nodes.number((state.host, state.node)),
            LIVES.index(state.life),
            state.step,
            rates.get(state.rank),
            NONE if state.phase is None else phases.number(shorten(state.phase, MAX_TEXT)),
            NONE if key is None else calls.number(key),
            wait_of.get(state.rank, NONE),
            state.waits[-1].waited if state.waits else None,
            round(max(table.time - state.progress, 0.0), 1) if state.progress else 0.0,
            awaited_by.get(state.rank, 0),
            None if state.memory_bytes is None else state.memory_bytes // _MIB,
            gpu_of.get((state.node, state.pid)),
        )
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
    groups, cut_groups = _groups(table.ranks, table.groups)
    return LiveState(
        at=table.time,
        world_size=table.world_size,
        silent_since=table.silent_since,
        ranks=RankColumns(**columns),
        nodes=_nodes(table, nodes.numbers, columns["node"]),
        lives=LIVES,
        phases=tuple(phases.numbers),
        calls=tuple(_live_call(first_entered[key], table.groups) for key in calls.numbers),
        waits=waits,
        groups=groups,
        latencies=merge_latencies(table.latencies)[:MAX_LATENCIES],
        findings=tuple(map(_live_finding, findings[:MAX_FINDINGS])),
        cut=calls.cut + nodes.cut + cut_groups + max(len(findings) - MAX_FINDINGS, 0),
    )


def current_call(state: RankState) -> RecordedCall | None:
    """Return the oldest call in which the rank certainly is, else None."""
    return next((call for call in state.pending if call.certain), None)


def _key(call: RecordedCall) -> _CallKey:
    return call.group, call.sequence, call.name


def _live_call(call: RecordedCall, groups: Mapping[str, ProcessGroupInfo]) -> LiveCall:
    site = shorten(str(call.site), MAX_TEXT) if call.site else ""
    group = group_label(call.group, groups.get(call.group))
    return LiveCall(group, call.sequence, call.name, site, call.entered)


def _waits(
    table: JobSummary, calls: _Numbering, first_entered: dict[_CallKey, RecordedCall]
) -> tuple[tuple[LiveWait, ...], dict[int, int], Counter[int]]:
    """Return the oldest waits, the wait of each rank that waits, and how many await each rank."""
    limit = table.time - SHOWN_WAIT_S
    if not any(call.entered < limit for state in table.ranks for call in state.pending):
        return (), {}, Counter()
    graph = build_wait_graph(table.ranks, table.groups, table.world_size)
    shown = [wait for wait in graph.waits if wait.operation.entered < limit]
    shown.sort(key=lambda wait: wait.operation.entered)
    waits: list[LiveWait] = []
    wait_of: dict[int, int] = {}
    awaited_by: Counter[int] = Counter()
    for wait in shown[:MAX_WAITS]:
        key = _key(wait.operation)
        first_entered.setdefault(key, wait.operation)
        wait_of |= dict.fromkeys(wait.waiters, len(waits))
        awaited_by.update(dict.fromkeys(wait.awaited, len(wait.waiters)))
        waiters, awaited = (
            compress_ranks(ranks, limit=64) for ranks in (wait.waiters, wait.awaited)
        )
        waits.append(LiveWait(calls.number(key), waiters, awaited, wait.operation.entered))
    return tuple(waits), wait_of, awaited_by


def _groups(
    ranks: Sequence[RankState], groups: Mapping[str, ProcessGroupInfo]
) -> tuple[tuple[LiveGroup, ...], int]:
    """Return the groups, those with members behind first, and how many were left out."""
    entered: dict[str, list[int]] = defaultdict(list)
    for state in ranks:
        for name, progress in state.groups.items():
            if name in NO_GROUPS:
                continue
            entered[name].append(progress.entered)
    rows = []
    for name, numbers in entered.items():
        group, newest = groups.get(name), max(numbers)
        size = len(group.ranks) if group is not None and group.ranks is not None else len(numbers)
        behind = size - numbers.count(newest)
        label = group_label(name, group)
        backend = group.backend if group is not None else ""
        members = group.ranks if group is not None and group.ranks is not None else ()
        row = LiveGroup(shorten(label, MAX_TEXT), backend, size, newest, behind)
        rows.append((row, members))
    rows.sort(key=lambda pair: (-pair[0].behind, -pair[0].size, pair[0].name))
    shown = tuple(replace(row, members=_few_runs(members)) for row, members in rows[:MAX_GROUPS])
    return shown, max(len(rows) - MAX_GROUPS, 0)


def _few_runs(members: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    runs = rank_runs(members)
    return runs if len(runs) <= MAX_RUNS else ()


def group_label(name: str, group: ProcessGroupInfo | None) -> str:
    """Return the description of a group if it has one, else its name."""
    description = group.description if group is not None else ""
    return name if description in ("", "undefined") else description


def _nodes(
    table: JobSummary, numbers: Mapping[tuple[str, str], int], node_column: Sequence[int]
) -> tuple[NodeReading, ...]:
    """Return one reading per node, also for nodes that reported none."""
    counts = np.bincount(np.array(node_column, dtype=np.int64) + 1, minlength=len(numbers) + 1)[1:]
    readings = {reading.node: reading for reading in table.nodes}
    return tuple(
        NodeReading(
            host=host,
            node=node,
            ranks=int(count),
            memory_bytes=reading.memory_bytes,
            memory_available_bytes=reading.memory_available_bytes,
            gpus=reading.gpus,
        )
        if (reading := readings.get(node)) is not None
        else NodeReading(host=host, node=node, ranks=int(count))
        for (host, node), count in zip(numbers, counts, strict=False)
    )


def _live_finding(finding: Finding) -> LiveFinding:
    return LiveFinding(
        finding.code,
        finding.cause,
        str(finding.level),
        shorten(finding.message, MAX_TEXT),
        finding.subject.host or "",
        finding.subject.rank,
    )


def merge_latencies(latencies: Iterable[CallLatency]) -> tuple[CallLatency, ...]:
    """Merge the latencies of several nodes, by group and operation; the longest total first."""
    merged: dict[tuple[str, str], list[CallLatency]] = defaultdict(list)
    for each in latencies:
        merged[each.group, each.operation].append(each)
    rows = []
    for (group, operation), parts in merged.items():
        calls = sum(part.calls for part in parts)
        rows.append(
            CallLatency(
                group,
                operation,
                calls,
                min(part.shortest_s for part in parts),
                round(sum(part.median_s * part.calls for part in parts) / max(calls, 1), 7),
                max(part.longest_s for part in parts),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.calls * row.median_s))


def build_series_point(state: LiveState) -> SeriesPoint:
    """Return the column of the heat map for ``state``."""
    ranks = state.ranks
    rates = np.array([np.nan if rate is None else rate for rate in ranks.rate], dtype=float)
    waits = np.array([np.nan if share is None else share for share in ranks.waited], dtype=float)
    highest = float(np.nanmax(rates)) if np.isfinite(rates).any() else 0.0
    steps = [step for step in ranks.step if step is not None]
    return SeriesPoint(
        at=round(state.at, 1),
        generation=state.generation,
        world_size=state.world_size,
        step=max(steps, default=None),
        rate=round(highest, 4),
        rates=_fold(rates / highest if highest > 0 else rates * np.nan),
        waits=_fold(waits),
    )


def _fold(shares: np.ndarray[Any, Any]) -> bytes:
    """Return the lowest share of each block of ranks, as bytes."""
    if not len(shares):
        return b""
    blocks = min(len(shares), SERIES_ROWS)
    starts = np.arange(blocks) * len(shares) // blocks
    lowest = np.fmin.reduceat(shares, starts)
    known = np.isfinite(lowest)
    scaled = np.clip(np.where(known, lowest, 0.0), 0.0, 1.0) * SERIES_FULL
    return np.where(known, np.rint(scaled), SERIES_UNKNOWN).astype(np.uint8).tobytes()
