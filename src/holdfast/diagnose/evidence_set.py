"""The evidence files by kind, what was read of each, and the rank tables made from them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO, cast

import msgspec

from holdfast.core.errors import DumpUnreadable, SnapshotUnreadable
from holdfast.core.findings import Fact, Verdict
from holdfast.core.rank_table import ProcessGroupInfo
from holdfast.core.text import os_error_reason
from holdfast.diagnose import history_files, memory_snapshots, trace_files
from holdfast.diagnose.dumps import dump_set
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.dumps.reduced_dumps import ReducedDumps
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence
from holdfast.diagnose.evidence.streams import CountingStream, buffered
from holdfast.diagnose.memory_snapshots import MemorySnapshot
from holdfast.diagnose.stacks import stack_files
from holdfast.diagnose.stacks.stack_files import StackTable
from holdfast.diagnose.trace_files import TraceTable
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.flight_recorder.dump_reader import FlightRecorderDump
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.run_folder import RunCommand

#: Called with the number of files found and of bytes read so far, and the name of the current file.
ProgressCallback = Callable[[int, int, str], None]

MAX_REPORT_BYTES = 256 << 20


class ReadEvidence(msgspec.Struct, frozen=True):
    """A file that was read; ``read_error`` (``trouble`` in JSON) is why not to its end."""

    name: str
    kind: EvidenceKind
    bytes: int
    read_error: str = msgspec.field(default="", name="trouble")


@dataclass(slots=True)
class _CountedFile:
    """What remains of a file once it was read; a folder may have 100,000."""

    name: str
    kind: EvidenceKind
    size: int
    errors: list[str]
    bytes: int = 0


@dataclass
class EvidenceSet:
    """Evidence files by kind.

    ``read`` are the files that were read, ``ignored`` those that were not, ``earlier_verdict`` is a
    verdict in a report of holdfast, ``commands`` are those of the runs whose folders were read.
    """

    on_progress: ProgressCallback | None
    read: list[ReadEvidence] = field(default_factory=list)
    ignored: list[SkippedEvidence] = field(default_factory=list)
    earlier_verdict: Verdict | None = None
    commands: set[RunCommand] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)
    _by_kind: dict[EvidenceKind, list[EvidenceFile]] = field(default_factory=dict)
    _counted: list[_CountedFile] = field(default_factory=list)
    _bytes: int = 0

    def take_logs(self, found: Iterable[EvidenceFile | SkippedEvidence]) -> Iterator[EvidenceFile]:
        """Yield the logs at once; keep the other files, and the skipped ones."""
        for item in found:
            if isinstance(item, SkippedEvidence):
                self.ignored.append(item)
                continue
            file = self._count_reads(item)
            if file.kind is EvidenceKind.LOG:
                yield file
            else:
                self._by_kind.setdefault(file.kind, []).append(file)

    def _count_reads(self, file: EvidenceFile) -> EvidenceFile:
        """Return the file with an opener that counts bytes read and never fails."""
        counted = _CountedFile(file.name, file.kind, file.size or 0, file.read_errors)
        self._counted.append(counted)
        if file.content is not None:
            self._add_bytes(counted, len(file.content))
            return file

        def open_counted() -> BinaryIO:
            try:
                inner = file.open()
            except OSError as error:
                file.read_errors.append(os_error_reason(error))
                return io.BytesIO()
            counted.bytes = 0
            stream = CountingStream(inner, partial(self._add_bytes, counted))
            if file.kind is EvidenceKind.LOG:
                return cast(BinaryIO, stream)  # read in large parts
            return buffered(stream, file.size)

        return EvidenceFile(
            file.name, file.kind, file.size, open_counted, file.read_errors, file.path
        )

    def _add_bytes(self, counted: _CountedFile, size: int) -> None:
        counted.bytes += size
        self._bytes += size
        if self.on_progress is not None:
            self.on_progress(len(self._counted), self._bytes, counted.name)

    def finish_reading(self) -> None:
        """Set ``read``, once all files were read."""
        self.read = [
            ReadEvidence(file.name, file.kind, file.bytes or file.size, "; ".join(file.errors))
            for file in self._counted
            if file.name not in self._refused
        ]

    def has(self, kind: EvidenceKind) -> bool:
        """Return whether a file of that kind was found."""
        return any(file.kind is kind for file in self._counted)

    def read_traces(self) -> TraceTable:
        """Return the table of the trace files."""
        table = trace_files.read_trace_files(self._by_kind.get(EvidenceKind.TRACE, ()))
        self.refuse(table.skipped)
        return table

    def newest_summary(self, traces: JobSummary | None) -> JobSummary | None:
        """Return the newer of the traces' table and those in incident reports.

        A report's table has stacks and exit codes too.
        """
        newest = traces
        for file in self._by_kind.get(EvidenceKind.REPORT, ()):
            table = self._read_report(file)
            if table is not None and (
                newest is None or table.time >= max(_latest_start(newest), newest.time)
            ):
                newest = table
        return newest

    def _read_report(self, file: EvidenceFile) -> JobSummary | None:
        with file.open() as stream:
            data = stream.read(MAX_REPORT_BYTES)
        try:
            content = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.refuse([SkippedEvidence(file.name, "not a complete JSON document")])
            return None
        if isinstance(content, dict) and "ranks" in content:
            table = trace_files.parse_rank_table(content)
            if table is not None and table.ranks:
                return table
        self.commands |= _decode_command(content)
        verdict = _decode_verdict(content)
        if verdict is None or len(self._counted) > 1:
            why = "written by holdfast; the evidence next to it is analyzed instead"
            self.refuse([SkippedEvidence(file.name, why)])
        self.earlier_verdict = verdict or self.earlier_verdict
        return None

    def read_dumps(self, groups: Mapping[str, ProcessGroupInfo]) -> DumpTable | None:
        """Return the table of the flight-recorder dumps; ``groups`` are those in the traces."""
        reduced = self._reduce_dumps()
        return dump_set.build_table(reduced, groups) if reduced.ranks else None

    def reduce_dumps(self) -> ReducedDumps:
        """Return the dumps in reduced form; refuse files of any other kind."""
        for kind in self._by_kind.keys() - {EvidenceKind.DUMP, EvidenceKind.REDUCED}:
            why = "not a flight-recorder dump"
            self.refuse(SkippedEvidence(file.name, why) for file in self._by_kind[kind])
        before = len(self.ignored)
        reduced = self._reduce_dumps()
        lost = (item for item in self.ignored[before:] if item.lost)
        reduced.unseen += (f"{item.name}: {item.why}" for item in lost)
        return reduced

    def _reduce_dumps(self) -> ReducedDumps:
        dumps = self._by_kind.get(EvidenceKind.DUMP, ())
        result = dump_set.reduce_files((*dumps, *self._by_kind.get(EvidenceKind.REDUCED, ())))
        self.refuse(result.skipped)
        return result.reduced

    def find_dump(self, table: DumpTable | None, rank: int) -> FlightRecorderDump | None:
        """Return the complete dump of one rank; None if there is none."""
        name = table.files.get(rank) if table is not None else None
        for file in self._by_kind.get(EvidenceKind.DUMP, ()):
            if file.name == name:
                try:
                    with file.open() as stream:
                        data = stream.read(dump_reader.MAX_BYTES + 1)
                        return dump_reader.parse_dump(data, file.name)
                except (DumpUnreadable, OSError, EOFError):
                    return None
        return None

    def read_stacks(self, rank_by_pid: Mapping[int, int], world_size: int) -> StackTable:
        """Return the table of the stack files, given known processes and the job's size."""
        table = stack_files.read_stack_files(
            self._by_kind.get(EvidenceKind.STACKS, ()), rank_by_pid, world_size
        )
        self.refuse(table.skipped)
        return table

    def read_snapshots(self) -> list[MemorySnapshot]:
        """Return the readable GPU memory snapshots."""
        snapshots = []
        for file in self._by_kind.get(EvidenceKind.SNAPSHOT, ()):
            try:
                with file.open() as stream:
                    data = stream.read(memory_snapshots.MAX_BYTES + 1)
                snapshots.append(memory_snapshots.parse_snapshot(data, file.name))
            except SnapshotUnreadable as error:
                self.refuse([SkippedEvidence(file.name, error.why, lost=True)])
        return snapshots

    def read_history(self) -> tuple[Fact, ...]:
        """Return the facts in collective history files."""
        facts, ignored = history_files.read_histories(self._by_kind.get(EvidenceKind.HISTORY, ()))
        self.refuse(ignored)
        return facts

    def refuse(self, items: Iterable[SkippedEvidence]) -> None:
        """Add files that cannot be used to the ignored ones."""
        for item in items:
            self.ignored.append(item)
            self._refused.add(item.name)


def _latest_start(table: JobSummary) -> float:
    return max((state.started for state in table.ranks), default=0.0)


def _decode_command(content: Any) -> set[RunCommand]:
    """Return the command in a ``command.json``; empty if the document is another one."""
    try:
        return {msgspec.convert(content, RunCommand)} if "script" in content else set()
    except (msgspec.ValidationError, TypeError):
        return set()


def _decode_verdict(content: Any) -> Verdict | None:
    """Return the verdict in a JSON report, or a verdict that is the whole document."""
    if isinstance(content, dict):
        content = content.get("verdict", content)
    try:
        return msgspec.convert(content, Verdict)
    except (msgspec.ValidationError, OverflowError):
        return None
