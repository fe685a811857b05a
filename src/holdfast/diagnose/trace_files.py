"""Build the table of ranks from trace files alone, of a job that has ended or runs elsewhere.

Of several generations or runs, the newest is used. Whether a process is alive is known if its
script recorded its end, or if the file was written on this host by a process that still exists;
otherwise it is unknown.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core import trace_file
from holdfast.core.errors import TraceUnreadable
from holdfast.core.findings import Fact
from holdfast.core.rank_table import ProcessGroupInfo, ProcessState, RankState
from holdfast.core.text import os_error_reason
from holdfast.diagnose.evidence import EvidenceFile, SkippedEvidence
from holdfast.host.processes import inspection
from holdfast.host.processes.inspection import ProcessSample
from holdfast.watcher.flight_recorder import completion
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump
from holdfast.watcher.job_summary import JobSummary, agree_on_groups

if TYPE_CHECKING:
    from holdfast.watcher.trace_reader import TraceReading

MAX_BYTES = 1 << 30
#: Ranks of one generation start within this time of each other.
START_SPREAD_S = 3600.0
#: Calls kept of each rank, and of all: as many as the watcher keeps.
RECENT_CALLS, RECENT_CALLS_OF_ALL, _MIN_RECENT_CALLS = 256, 1 << 16, 4
_INVALID = (ValueError, IndexError, KeyError, TypeError, OverflowError, msgspec.ValidationError)


class TraceTable(msgspec.Struct, frozen=True):
    """The ranks of the newest generation (None without a readable file), and the skipped files.

    ``files`` are the files in the table, by rank.
    """

    summary: JobSummary | None
    skipped: tuple[SkippedEvidence, ...]
    files: dict[int, EvidenceFile] = {}


class _Trace(msgspec.Struct, frozen=True):
    """The content of one trace file."""

    file: EvidenceFile
    state: RankState
    groups: dict[str, ProcessGroupInfo]
    facts: tuple[Fact, ...]
    generation: int
    world_size: int


def read_trace_files(files: Iterable[EvidenceFile]) -> TraceTable:
    """Return the table of these files; one file is in memory at a time."""
    traces: list[_Trace] = []
    skipped: list[SkippedEvidence] = []
    for file in files:
        try:
            traces.append(_read_trace(file))
        except TraceUnreadable as error:
            skipped.append(SkippedEvidence(file.name, error.why, lost=True))
        except _INVALID as error:
            why = f"its content contradicts itself ({type(error).__name__})"
            skipped.append(SkippedEvidence(file.name, why, lost=True))
        except OSError as error:
            why = os_error_reason(error)
            skipped.append(SkippedEvidence(file.name, why, lost=True))
    if not traces:
        return TraceTable(None, tuple(skipped))
    newest = max(traces, key=lambda trace: (trace.state.started, trace.generation))
    kept: dict[int, _Trace] = {}
    for trace in sorted(traces, key=lambda trace: trace.state.progress):
        if not _same_generation(trace, newest):
            why = "it belongs to an earlier generation or to another run"
            skipped.append(SkippedEvidence(trace.file.name, why))
            continue
        if older := kept.get(trace.state.rank):
            why = f"{trace.file.name} is a newer trace file of the same rank"
            skipped.append(SkippedEvidence(older.file.name, why))
        kept[trace.state.rank] = trace
    summary = _summarize([kept[rank] for rank in sorted(kept)], newest.world_size)
    return TraceTable(summary, tuple(skipped), {rank: trace.file for rank, trace in kept.items()})


def resolve_completions(
    table: TraceTable, dump_of: Callable[[int], FlightRecorderDump | None]
) -> JobSummary | None:
    """Return the summary with the completion of NCCL calls, which is only in flight-recorder dumps.

    ``dump_of`` returns the dump of a rank; it is called only for ranks with such calls.
    """
    if table.summary is None:
        return None
    ranks = tuple(_resolve_rank(table, state, dump_of) for state in table.summary.ranks)
    return replace(table.summary, ranks=ranks)


def _resolve_rank(
    table: TraceTable, state: RankState, dump_of: Callable[[int], FlightRecorderDump | None]
) -> RankState:
    if not any(call.is_doubtful for call in state.pending):
        return state
    dump, file = dump_of(state.rank), table.files.get(state.rank)
    if dump is None or file is None:
        missing = "completion of NCCL calls: no flight-recorder dump of this rank"
        return replace(state, unseen=(*state.unseen, missing))
    return completion.mark_completed(state, dump, _open_trace(file).collective)


def _same_generation(trace: _Trace, newest: _Trace) -> bool:
    return (trace.generation, trace.world_size) == (newest.generation, newest.world_size) and (
        newest.state.started - trace.state.started < START_SPREAD_S
    )


def _summarize(traces: list[_Trace], world_size: int) -> JobSummary:
    groups, states = agree_on_groups([(trace.state, trace.groups) for trace in traces])
    newest = max(state.progress for state in states)
    facts = next((trace.facts for trace in traces if trace.facts), ())
    return JobSummary(tuple(states), groups, world_size, newest, newest, facts)


def _open_trace(file: EvidenceFile) -> TraceReading:
    """Return a reader that maps a private, already unlinked copy, which nothing can truncate."""
    # numpy, which only trace files need, takes 12 MiB.
    from holdfast.watcher.trace_reader import TraceReading  # noqa: PLC0415

    with tempfile.NamedTemporaryFile(prefix="holdfast-trace-") as copy:
        remaining = MAX_BYTES
        with file.open() as stream:
            while remaining > 0 and (data := stream.read(min(1 << 20, remaining))):
                copy.write(data)
                remaining -= len(data)
        copy.flush()
        return TraceReading(Path(copy.name))


def _read_trace(file: EvidenceFile) -> _Trace:
    trace = _open_trace(file)
    header, notes = trace.header, trace.read_notes()
    facts: list[Fact] = []
    for fact in notes.facts:
        with suppress(msgspec.ValidationError):
            facts.append(msgspec.convert(fact, Fact, strict=False))
    calls = max(
        _MIN_RECENT_CALLS, min(RECENT_CALLS, RECENT_CALLS_OF_ALL // max(header.world_size, 1))
    )
    return _Trace(
        file,
        _rank_state(trace, calls),
        notes.groups(),
        tuple(facts),
        header.generation,
        header.world_size,
    )


def _rank_state(trace: TraceReading, calls: int) -> RankState:
    header, notes, step = trace.header, trace.read_notes(), trace.step()
    progress = max(
        trace.last_change(),
        step.since if step.counted else 0.0,
        notes.ended.time if notes.ended else 0.0,
    )
    ended = notes.raised is not None or notes.ended is not None
    return RankState(
        rank=header.rank,
        host=header.host,
        pid=header.pid,
        life=ProcessState.DEAD
        if ended
        else _process_state(header.host, header.pid, header.start_ticks),
        started=header.started,
        progress=progress,
        step=step.number if step.counted else None,
        phase=step.phase or None,
        phase_budget_s=step.budget_s if step.phase else None,
        phase_since=step.phase_since if step.phase else 0.0,
        groups=trace.progress(),
        pending=tuple(trace.pending()),
        recent=tuple(trace.recent(calls)),
        raised=notes.raised,
        ended=notes.ended,
    )


def _process_state(host: str, pid: int, start_ticks: int) -> ProcessState:
    """Return the state of the process if it still exists on this host."""
    if (
        host != socket.gethostname()
        or not start_ticks
        or trace_file.process_start_ticks(pid) != start_ticks
    ):
        return ProcessState.UNKNOWN
    sample = inspection.sample_process(pid)
    return sample.life if isinstance(sample, ProcessSample) else ProcessState.UNKNOWN


def parse_rank_table(data: Mapping[str, object]) -> JobSummary | None:
    """Return the table of ranks in an incident's ``ranks.json``; None if it contains none."""
    try:
        return msgspec.convert(data, JobSummary)
    except (msgspec.ValidationError, OverflowError):
        return None
