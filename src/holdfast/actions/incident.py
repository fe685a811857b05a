"""Writes down an incident: a folder with the verdict, the page, the boxes and the stacks, readable on any machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.facts import collective_history
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Life, Operation, RankState
from holdfast.facts.user_code import innermost_user
from holdfast.findings import Fact, Verdict, verdict_to_json
from holdfast.report.files import write_whole
from holdfast.report.html import incident_page
from holdfast.report.timeline import Lane, Span, Timeline

SPANS_A_LANE = 64


def begin(
    parent: Path, verdict: Verdict, table: Summary, start: Mapping[str, Any]
) -> tuple[Path, Path, Callable[[], None]]:
    """Make the next incident folder in ``parent``; its path, that of the page, and what writes all that can wait.

    The boxes cannot: they are moved away as soon as the agent has heard the verdict.
    """
    folder = _next_folder(parent)
    page = folder / "report.html"
    _keep_boxes(folder / "boxes", start)
    return folder, page, lambda: _finish(folder, page, verdict, table, start)


def _finish(folder: Path, page: Path, verdict: Verdict, table: Summary, start: Mapping[str, Any]) -> None:
    write_whole(folder / "verdict.json", msgspec.json.format(msgspec.json.encode(verdict_to_json(verdict))))
    write_whole(folder / "ranks.json", msgspec.json.format(msgspec.json.encode(table)))
    collectives = _keep_history(folder, Path(start["run_dir"]).parent)
    stacks = {state.rank: _stack_lines(state) for state in table.ranks if state.stacks}
    run = {
        "run folder": str(start["run_dir"]),
        "generation": str(start["generation"]),
        "world size": str(table.world_size),
    }
    title = f"incident {folder.name}, generation {start['generation']}"
    content = incident_page(
        verdict, timeline(table), title=title, facts=(*table.facts, *collectives), stacks=stacks, run=run
    )
    write_whole(page, content.encode())


def _next_folder(parent: Path) -> Path:
    number = 0
    while True:
        folder = parent / str(number)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _keep_boxes(folder: Path, start: Mapping[str, Any]) -> None:
    """Copy the boxes of this node now: the agent moves the originals, but may be gone before it can."""
    folder.mkdir()
    for worker in start["workers"]:
        if Path(worker["box"]).exists():
            shutil.copyfile(worker["box"], folder / f"rank{worker['rank']}.box")


def _keep_history(folder: Path, runs: Path) -> tuple[Fact, ...]:
    """Keep what is known of collectives that timed out or were slow, where there are any, and tell it."""
    place = collective_history.folder_of(runs)
    history = collective_history.read(place)
    if history.troubles:
        write_whole(folder / collective_history.FILE, collective_history.kept(history))
    return collective_history.facts(history, str(place))


def stuck_ranks(verdict: Verdict, table: Summary) -> list[int]:
    """Ranks that will not answer a polite signal: the root of a hang, where its process still lives."""
    root = verdict.root.subject.rank if verdict.root else None
    return [state.rank for state in table.ranks if state.rank == root and state.life in (Life.RUNNING, Life.DISK)]


def timeline(table: Summary) -> Timeline:
    """The picture's data: a lane a rank with its newest calls."""
    described = {name: group.description for name, group in table.groups.items()}
    lanes = tuple(_lane(state, described) for state in table.ranks)
    begins = [span.start for lane in lanes for span in lane.spans]
    return Timeline(lanes, min(begins, default=table.time), table.time)


def _lane(state: RankState, groups: Mapping[str, str]) -> Lane:
    calls = {
        (call.group, call.name, call.sequence, call.peer, call.tag): call for call in (*state.recent, *state.pending)
    }
    ordered = sorted(calls.values(), key=lambda call: call.entered)[-SPANS_A_LANE:]
    place = innermost_user(state.stacks[-1]) if state.stacks else ordered[-1].site if ordered else None
    where = f"{place.file}:{place.line}" if place else ""
    spans = tuple(_span(call, groups.get(call.group, "")) for call in ordered if call.entered)
    return Lane(state.rank, state.host, spans, _state(state), where, _stack_lines(state))


def _span(call: Operation, group: str) -> Span:
    site = f" at {call.site}" if call.site else ""
    detail = f"group {call.group!r}, {call.dtype} {list(call.shape)}{site}"
    label = f"{call.name} #{call.sequence}" + ("" if group == "default_pg" else f" of {group or call.group}")
    return Span(call.entered, call.completed, label, call.name, detail)


def _state(state: RankState) -> str:
    if state.life == Life.DEAD:
        return f"ended ({state.exit_code})" if state.exit_code is not None else "ended"
    if state.life in (Life.STOPPED, Life.DISK):
        return str(state.life)
    inside = next((call.name for call in state.pending if call.certain), None)
    if inside is not None:
        return f"in {inside}"
    return "computing" if (state.cpu_share or 0) >= 0.3 else "asleep"


def _stack_lines(state: RankState) -> tuple[str, ...]:
    return tuple(str(frame) for frame in state.stacks[-1].frames) if state.stacks else ()
