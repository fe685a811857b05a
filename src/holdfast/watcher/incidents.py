"""Writes the folder of an incident: verdict, page, trace files and stacks, readable on any host."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.findings import Fact, Verdict, verdict_to_json
from holdfast.core.rank_table import ProcessState, RankState, RecordedCall
from holdfast.host.processes.user_code import innermost_user_frame
from holdfast.report.html import incident_page
from holdfast.report.source_windows import read_windows
from holdfast.report.timeline import Timeline, TimelineLane, TimelineSpan
from holdfast.watcher import history_facts
from holdfast.watcher.agent_messages import StartWatching
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules.stall import is_busy
from holdfast.watcher.run_folder import create_numbered_folder

SPANS_PER_LANE = 64


def create_incident(
    parent: Path, verdict: Verdict, table: JobSummary, job: StartWatching
) -> tuple[Path, Path, Callable[[], None]]:
    """Create the next incident folder in ``parent`` and copy the trace files into it.

    Return the folder, the path of the page, and a function that writes the rest. The trace files
    cannot wait: the agent moves them as soon as it has received the verdict.
    """
    folder = create_numbered_folder(parent)
    page = folder / "report.html"
    _copy_traces(folder / "traces", job)
    return folder, page, lambda: _write_rest(folder, page, verdict, table, job)


def _write_rest(
    folder: Path, page: Path, verdict: Verdict, table: JobSummary, job: StartWatching
) -> None:
    write_atomic(
        folder / "verdict.json", msgspec.json.format(msgspec.json.encode(verdict_to_json(verdict)))
    )
    write_atomic(folder / "ranks.json", msgspec.json.format(msgspec.json.encode(table)))
    content = incident_page(
        verdict,
        incident_timeline(table),
        title=f"incident {folder.name}, generation {job.generation}",
        facts=(*table.facts, *_keep_history(folder, Path(job.run_dir).parent)),
        stacks={state.rank: _stack_lines(state) for state in table.ranks if state.stacks},
        run={
            "run folder": job.run_dir,
            "generation": str(job.generation),
            "world size": str(table.world_size),
        },
        source=read_windows(verdict),
    )
    write_atomic(page, content.encode())


def _copy_traces(folder: Path, job: StartWatching) -> None:
    """Copy the trace files of this node: the agent moves the originals, but may die first."""
    folder.mkdir()
    for worker in job.workers:
        if Path(worker.trace).exists():
            shutil.copyfile(worker.trace, folder / f"rank{worker.rank}.trace")


def _keep_history(folder: Path, runs: Path) -> tuple[Fact, ...]:
    """Keep the history of collectives, if it has problems, and return its facts."""
    source = history_facts.history_folder(runs)
    history = history_facts.read_histories(source)
    if history.troubles:
        write_atomic(folder / history_facts.FILE, history_facts.encode_history(history))
    return history_facts.history_facts(history, str(source))


def stuck_ranks(verdict: Verdict, table: JobSummary) -> tuple[int, ...]:
    """Return the ranks that ignore SIGTERM: the root of a hang, if its process is alive."""
    root = verdict.root.subject.rank if verdict.root else None
    return tuple(
        state.rank
        for state in table.ranks
        if state.rank == root and state.life in (ProcessState.RUNNING, ProcessState.DISK)
    )


def incident_timeline(table: JobSummary) -> Timeline:
    """Return the data of the timeline: a lane per rank with its newest calls."""
    descriptions = {name: group.description for name, group in table.groups.items()}
    lanes = tuple(_lane(state, descriptions) for state in table.ranks)
    begins = [span.start for lane in lanes for span in lane.spans]
    return Timeline(lanes, min(begins, default=table.time), table.time)


def _lane(state: RankState, descriptions: Mapping[str, str]) -> TimelineLane:
    calls = {
        (call.group, call.name, call.sequence, call.peer, call.tag): call
        for call in (*state.recent, *state.pending)
    }
    ordered = sorted(calls.values(), key=lambda call: call.entered)[-SPANS_PER_LANE:]
    location = ordered[-1].site if ordered else None
    if state.stacks:
        location = innermost_user_frame(state.stacks[-1])
    where = f"{location.file}:{location.line}" if location else ""
    spans = tuple(_span(call, descriptions.get(call.group, "")) for call in ordered if call.entered)
    return TimelineLane(
        state.rank, state.host, spans, _describe_state(state), where, _stack_lines(state)
    )


def _span(call: RecordedCall, description: str) -> TimelineSpan:
    site = f" at {call.site}" if call.site else ""
    detail = f"group {call.group!r}, {call.dtype} {list(call.shape)}{site}"
    # torch describes a group without a description as undefined
    name = f"group {call.group!r}" if description in ("", "undefined") else description
    of_group = "" if description == "default_pg" else f" of {name}"
    label = f"{call.name} #{call.sequence}{of_group}"
    return TimelineSpan(call.entered, call.completed, label, call.name, detail)


def _describe_end(exit_code: int | None) -> str:
    if exit_code is not None and -exit_code in set(signal.Signals):
        return f"ended by {signal.Signals(-exit_code).name}"
    return "ended" if exit_code is None else f"ended ({exit_code})"


def _describe_state(state: RankState) -> str:
    if state.life == ProcessState.DEAD:
        return _describe_end(state.exit_code)
    if state.life in (ProcessState.STOPPED, ProcessState.DISK):
        return str(state.life)
    current = next((call.name for call in state.pending if call.certain), None)
    if current is not None:
        return f"in {current}"
    return "computing" if is_busy(state) else "asleep"


def _stack_lines(state: RankState) -> tuple[str, ...]:
    return tuple(str(frame) for frame in state.stacks[-1].frames) if state.stacks else ()
