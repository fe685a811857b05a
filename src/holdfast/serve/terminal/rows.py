"""The rows of the terminal view. Pure: ranks that do not differ are one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

from holdfast.core.live_state import NONE, LiveGroup, LiveState
from holdfast.core.rank_sets import rank_label
from holdfast.core.text import escape_invisible, format_duration, format_percent, pluralize

#: Up to this many ranks have a row each.
UNFOLDED = 64
#: Rows in all; a filter shows others.
MAX_ROWS = 400
#: Ranks are alike within this distance from the median share of time in collectives, and within
#: this fraction of the median memory.
_WAIT_BAND, _MEMORY_BAND = 0.2, 0.3
_SILENT_S = 3.0

COLUMNS = ("ranks", "host", "step", "steps/s", "in coll.", "silent", "memory", "GPU", "state")
SORTS = ("ranks", "difference", "step", "steps/s", "in coll.", "silent", "memory", "GPU")


class TopRow(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks in the same state, with the values of the first of them; None: unknown.

    The head of a block has its ranks and ``state`` only.
    """

    ranks: tuple[int, ...]
    host: str = ""
    step: int | None = None
    rate: float | None = None
    waited: float | None = None
    silent_s: float = 0.0
    memory: int | None = None
    temperature: int | None = None
    state: str
    difference: float = 0.0
    is_head: bool = False

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the columns."""
        ranks, state = rank_label(self.ranks), escape_invisible(self.state)
        if self.is_head:
            return (ranks, *[""] * (len(COLUMNS) - 2), state)
        return (
            ranks,
            escape_invisible(self.host),
            "-" if self.step is None else f"{self.step:,}",
            "-" if self.rate is None else f"{self.rate:.2f}",
            "-" if self.waited is None else format_percent(self.waited),
            "" if self.silent_s < _SILENT_S else format_duration(self.silent_s),
            "-" if self.memory is None else f"{self.memory / 1024:.1f} GiB",
            "-" if self.temperature is None else f"{self.temperature} °C",
            state,
        )


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """What to show: the order, rows with ``text`` or that rank, folded rows, a block per group."""

    sort: str = "difference"
    reverse: bool = False
    text: str = ""
    fold: bool = True
    blocks: bool = False


def build_rows(state: LiveState, view: TopView | None = None) -> list[TopRow]:
    """Return the rows to show; with blocks, a rank has a row in each of its process groups."""
    view = view or TopView()
    ranks = state.ranks
    medians = {
        name: _median(getattr(ranks, name)) for name in ("step", "waited", "memory", "silent_s")
    }
    heat = _temperatures(state)
    if not view.blocks:
        return _section(state, view, range(len(ranks.rank)), medians, heat)[:MAX_ROWS]
    position = {rank: at for at, rank in enumerate(ranks.rank)}
    rows: list[TopRow] = []
    for group in state.groups:
        members = [position[rank] for rank in _members(group, len(position)) if rank in position]
        section = _section(state, view, members, medians, heat)
        if section:
            rows += [_head(group, tuple(ranks.rank[at] for at in members)), *section]
        if len(rows) >= MAX_ROWS:
            break
    return rows[:MAX_ROWS]


def _members(group: LiveGroup, limit: int) -> list[int]:
    """Return the ranks of a group, at most ``limit``: a file may be damaged."""
    return [
        rank
        for first, distance, count in group.members
        for rank in range(first, first + min(count, limit) * max(distance, 1), max(distance, 1))
    ][:limit]


def _head(group: LiveGroup, ranks: tuple[int, ...]) -> TopRow:
    return TopRow(ranks=ranks, state=f"group {describe_group(group)}", is_head=True)


def _section(
    state: LiveState,
    view: TopView,
    members: Sequence[int],
    medians: Mapping[str, float | None],
    heat: dict[tuple[int, int], int],
) -> list[TopRow]:
    """Return the rows of some ranks, in the order of the view."""
    folded: dict[tuple[Any, ...], list[int]] = {}
    folds = view.fold and len(state.ranks.rank) > UNFOLDED
    for at in members:
        key = (at,) if not folds else _fold_key(state, at, medians)
        folded.setdefault(key, []).append(at)
    rows = [_row(state, alike, medians, heat) for alike in folded.values()]
    if view.text:
        rows = [row for row in rows if _matches(row, view.text.lower())]
    rows.sort(key=_ORDER[view.sort], reverse=view.reverse)
    return rows


def _fold_key(state: LiveState, at: int, medians: Mapping[str, float | None]) -> tuple[Any, ...]:
    ranks, memory = state.ranks, medians["memory"] or 0.0
    return (
        ranks.life[at],
        ranks.step[at],
        ranks.phase[at],
        ranks.call[at],
        ranks.wait[at],
        ranks.awaited[at],
        _band(ranks.waited[at], medians["waited"], _WAIT_BAND),
        _band(ranks.memory[at], memory, _MEMORY_BAND * memory),
        ranks.silent_s[at] >= _SILENT_S,
    )


def _band(value: float | None, usual: float | None, tolerance: float) -> int | None:
    """Return whether a value is below (-1), about (0) or above (1) the usual one."""
    if value is None or usual is None:
        return None
    return (value > usual + tolerance) - (value < usual - tolerance)


def _row(
    state: LiveState,
    members: Sequence[int],
    medians: Mapping[str, float | None],
    heat: dict[tuple[int, int], int],
) -> TopRow:
    ranks, first = state.ranks, members[0]
    nodes = {ranks.node[at] for at in members}
    host = state.nodes[ranks.node[first]].host if ranks.node[first] != NONE else ""
    temperatures = [
        temperature
        for at in members
        if (temperature := heat.get((ranks.node[at], _gpu(ranks.gpu[at])))) is not None
    ]
    return TopRow(
        ranks=tuple(ranks.rank[at] for at in members),
        host=host if len(nodes) == 1 else f"{len(nodes)} hosts",
        step=ranks.step[first],
        rate=_median(ranks.rate[at] for at in members),
        waited=_median(ranks.waited[at] for at in members),
        silent_s=ranks.silent_s[first],
        memory=max((ranks.memory[at] or 0 for at in members), default=0) or None,
        temperature=max(temperatures, default=None),
        state=describe_state(state, first),
        difference=_difference(state, first, medians),
    )


def _gpu(index: int | None) -> int:
    return NONE if index is None else index


def _temperatures(state: LiveState) -> dict[tuple[int, int], int]:
    return {
        (number, gpu.index): gpu.temperature_c
        for number, node in enumerate(state.nodes)
        for gpu in node.gpus
        if gpu.temperature_c is not None
    }


def describe_state(state: LiveState, at: int) -> str:
    """Return what a rank does now, in words: process state, phase, call, awaited ranks."""
    ranks = state.ranks
    life = state.lives[ranks.life[at]] if ranks.life[at] != NONE else "unknown"
    parts = [] if life == "running" else [life]
    if ranks.phase[at] != NONE:
        parts.append(f"phase {state.phases[ranks.phase[at]]}")
    if ranks.call[at] != NONE:
        call = state.calls[ranks.call[at]]
        parts.append(f"{call.operation} #{call.sequence} of {call.group}")
    if ranks.wait[at] != NONE and (awaited := state.waits[ranks.wait[at]].awaited):
        parts.append(f"waits for {awaited}")
    doing = ", ".join(parts) or "computing"
    waiters = ranks.awaited[at]
    return f"{doing}, awaited by {pluralize(waiters, 'rank')}" if waiters else doing


def _difference(state: LiveState, at: int, medians: Mapping[str, float | None]) -> float:
    """Return how much a rank differs from the usual one; dead and stopped ranks most."""
    ranks = state.ranks
    score = 10.0 if state.lives[ranks.life[at]] not in ("running", "unknown") else 0.0
    score += 6.0 if ranks.awaited[at] and ranks.wait[at] == NONE else 0.0
    score += min(_above(ranks.step[at], medians["step"], -1), 5.0)
    score += 4.0 * _above(ranks.waited[at], medians["waited"], -1)
    score += min(_above(ranks.silent_s[at], medians["silent_s"], 1), 5.0)
    memory = medians["memory"]
    return score + (_above(ranks.memory[at], memory, 1) / memory if memory else 0.0)


def _above(value: float | None, usual: float | None, sign: int) -> float:
    return 0.0 if value is None or usual is None else max(sign * (value - usual), 0.0)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _matches(row: TopRow, text: str) -> bool:
    if text.isdecimal():
        return int(text) in row.ranks
    return any(text in cell.lower() for cell in row.cells())


def _known(value: float | None) -> float:
    return float("-inf") if value is None else value


#: Each order shows the most conspicuous rows first: late, slow, silent, large, hot.
_ORDER: dict[str, Callable[[TopRow], Any]] = {
    "ranks": lambda row: row.ranks[0],
    "difference": lambda row: (-row.difference, row.ranks[0]),
    "step": lambda row: (_known(row.step), row.ranks[0]),
    "steps/s": lambda row: (_known(row.rate), row.ranks[0]),
    "in coll.": lambda row: (_known(row.waited), row.ranks[0]),
    "silent": lambda row: (-row.silent_s, row.ranks[0]),
    "memory": lambda row: (-_known(row.memory), row.ranks[0]),
    "GPU": lambda row: (-_known(row.temperature), row.ranks[0]),
}


def group_lines(state: LiveState, limit: int = 6) -> list[str]:
    """Return a line per wait, the oldest first, and per group, those with members behind first."""
    lines = []
    for wait in state.waits[:limit]:
        call = state.calls[wait.call]
        site = f" at {call.site}" if call.site else ""
        lines.append(
            f"{wait.waiters} wait for {wait.awaited or 'no known rank'} in {call.operation} "
            f"#{call.sequence} of {call.group} for {format_duration(max(state.at - wait.since, 0))}"
            f"{site}"
        )
    lines += map(describe_group, state.groups[:limit])
    lines += ["and more groups"] if len(state.groups) > limit else []
    return [escape_invisible(line) for line in lines]


def describe_group(group: LiveGroup) -> str:
    """Return name, backend, size and newest collective of a group, and members behind."""
    behind = f", not entered by {pluralize(group.behind, 'rank')}" if group.behind else ""
    size = pluralize(group.size, "rank")
    return f"{group.name} ({group.backend or '?'}, {size}): #{group.entered}{behind}"


def finding_lines(state: LiveState, limit: int = 4) -> list[str]:
    """Return a line per finding about hosts and ranks."""
    return [
        escape_invisible(f"{finding.level} {finding.host}: {finding.message} ({finding.code})")
        for finding in state.findings[:limit]
    ]


def head_line(state: LiveState) -> str:
    """Return the state of the whole job in a line."""
    steps = [step for step in state.ranks.step if step is not None]
    rate = _median(state.ranks.rate)
    parts = [
        f"{pluralize(state.world_size, 'rank')} on {pluralize(len(state.nodes), 'node')}",
        f"generation {state.generation}",
        f"step {max(steps):,}" if steps else "no steps counted",
        "" if rate is None else f"{rate:.2f} steps/s",
        f"no progress for {format_duration(max(state.at - state.silent_since, 0.0))}"
        if state.at - state.silent_since >= _SILENT_S
        else "",
    ]
    return ", ".join(part for part in parts if part)
