"""Trace files: complete, torn, truncated, of another version, and random bytes."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import trace_file
from holdfast.core.errors import (
    ShmUnavailable,
    TraceCorrupt,
    TraceTruncated,
    TraceUnreadable,
    TraceVersion,
)
from holdfast.core.rank_table import SourceLine
from holdfast.core.trace_file import RECORD_BYTES, TraceNote, TraceWriter
from holdfast.recorder.backends import CallDetails, PythonRecorder
from holdfast.watcher.trace_reader import RECORD_DTYPE, TraceReading, step_seconds

ALL_REDUCE = trace_file.OPERATIONS.index("all_reduce")
FLOAT32 = trace_file.DTYPES.index("float32")
CALL = CallDetails(elements=12, dtype=FLOAT32, shape=(3, 4), tensors=1, reduction=0)


@pytest.fixture
def trace(tmp_path: Path) -> TraceWriter:
    """Create a trace file of rank 3 of 8."""
    return TraceWriter(
        tmp_path / "rank3.trace", rank=3, world_size=8, local_rank=1, generation=2, records=64
    )


def write(recorder: PythonRecorder, count: int, *, finish: bool = True) -> list[int]:
    """Record ``count`` all-reduces of 12 float32 in group ``0``."""
    numbers = []
    for _ in range(count):
        number = recorder.record("0", ALL_REDUCE, CALL)
        if finish:
            recorder.finish(number)
        numbers.append(number)
    return numbers


def test_layout_sizes_match_the_reader() -> None:
    assert trace_file.RECORD.size == RECORD_BYTES == RECORD_DTYPE.itemsize
    assert trace_file.HEADER.size <= trace_file.RECORDS_HEAD
    assert trace_file.STEP + trace_file.STEP_SLOT.size <= trace_file.HEADER_BYTES


def test_written_calls_are_read_back(trace: TraceWriter) -> None:
    recorder = PythonRecorder(trace, "/nowhere/torch")
    write(recorder, 2)
    pending = recorder.record("0", ALL_REDUCE, CALL)
    trace.note_json(TraceNote.MEMBERS, {"name": "0", "ranks": [0, 3], "description": "default"})
    read = TraceReading(trace.path)
    assert (read.header.rank, read.header.world_size, read.header.generation) == (3, 8, 2)
    assert read.header.pid == os.getpid()
    calls = read.recent(10)
    assert [call.sequence for call in calls] == [1, 2, 3]
    assert [call.completed is None for call in calls] == [False, False, True]
    assert calls[0].name == "all_reduce"
    assert (calls[0].dtype, calls[0].shape, calls[0].elements, calls[0].reduce) == (
        "float32",
        (3, 4),
        12,
        "sum",
    )
    assert calls[0].site is not None
    assert calls[0].site.file == __file__
    assert read.pending() == [calls[2]]
    assert read.progress()["0"].entered == 3
    assert read.progress()["0"].completed == 2
    assert read.read_notes().groups()["0"].ranks == (0, 3)
    assert pending == read.begun


@pytest.mark.parametrize("completes", [0.9, 0.3], ids=["few pending", "more than the ring"])
def test_pending_calls_are_those_of_the_whole_ring(trace: TraceWriter, completes: float) -> None:
    recorder, read, chance = (
        PythonRecorder(trace, "/nowhere/torch"),
        TraceReading(trace.path),
        random.Random(1),
    )
    begun: list[int] = []
    for _ in range(25):
        for _ in range(chance.choice((1, 2, 5, 40, 70))):
            begun.append(recorder.record("0", ALL_REDUCE, CALL))
            if chance.random() < 0.2:  # its completion is not reported
                at = trace.ring_at + (begun[-1] - 1) % 64 * RECORD_BYTES + trace_file.FLAGS_AT
                struct.pack_into("<I", trace.map, at, trace_file.FLAG_NO_COMPLETION)
            if chance.random() < completes:
                recorder.finish(begun.pop(chance.randrange(len(begun))))
        assert read.pending() == TraceReading(trace.path).pending()


def test_a_call_that_is_being_written_is_read_when_it_is_complete(trace: TraceWriter) -> None:
    recorder, read = PythonRecorder(trace, "/nowhere/torch"), TraceReading(trace.path)
    write(recorder, 70)
    recorder.record("0", ALL_REDUCE, CALL)
    at = trace.ring_at + 70 % 64 * RECORD_BYTES
    written = trace.map[at : at + RECORD_BYTES]
    trace.map[at : at + 8] = struct.pack("<Q", 7)  # the number is written last
    assert read.pending() == read.pending() == []
    trace.map[at : at + RECORD_BYTES] = written
    assert [call.sequence for call in read.pending()] == [71]


def test_the_ring_keeps_the_newest_calls(trace: TraceWriter) -> None:
    write(PythonRecorder(trace, "/nowhere/torch"), 150)
    table = TraceReading(trace.path).table()
    assert list(table["number"]) == list(range(87, 151))


def test_torn_records_are_dropped(trace: TraceWriter) -> None:
    write(PythonRecorder(trace, "/nowhere/torch"), 10)
    torn = trace.ring_at + 4 * RECORD_BYTES
    trace.map[torn + 24] ^= 0xFF  # the sequence of record 5, as if only half of it had been written
    assert [row["number"] for row in TraceReading(trace.path).table()] == [
        1,
        2,
        3,
        4,
        6,
        7,
        8,
        9,
        10,
    ]


def test_steps_and_phases_are_read(trace: TraceWriter) -> None:
    assert TraceReading(trace.path).step().counted == 0
    trace.step()
    trace.step()
    trace.step(41)
    trace.step()  # the optimizer hook stops counting once the script reports its steps
    trace.phase("checkpoint", 90.0)
    step = TraceReading(trace.path).step()
    assert (step.number, step.counted, step.phase, step.budget_s) == (41, 3, "checkpoint", 90.0)


def test_a_trace_survives_sigkill_of_its_writer(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder.backends import PythonRecorder
trace = TraceWriter(Path({str(tmp_path / "dead.trace")!r}), rank=0, world_size=1)
recorder = PythonRecorder(trace, "/nowhere/torch")
recorder.finish(recorder.begin("0", {ALL_REDUCE}))
recorder.begin("0", {ALL_REDUCE})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    (pending,) = TraceReading(tmp_path / "dead.trace").pending()
    assert pending.sequence == 2


@pytest.mark.parametrize("size", [0, 100, trace_file.HEADER_BYTES, 100_000])
def test_a_truncated_trace_is_refused(trace: TraceWriter, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "cut.trace"
    cut.write_bytes(bytes(trace.map[:size]))
    with pytest.raises(TraceTruncated, match=r"cut\.trace"):
        TraceReading(cut)


def test_another_version_is_refused_by_name(trace: TraceWriter) -> None:
    struct.pack_into("<I", trace.map, 8, 99)
    with pytest.raises(TraceVersion, match="version 99"):
        TraceReading(trace.path)


def test_a_missing_trace_gives_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TraceUnreadable, match="cannot read the trace file"):
        TraceReading(tmp_path / "none.trace")


@given(st.binary(min_size=0, max_size=9000))
def test_random_bytes_are_refused_or_read_as_empty(noise: bytes) -> None:
    path = Path("/tmp") / f"holdfast-noise-{os.getpid()}.trace"
    path.write_bytes(noise)
    try:
        with pytest.raises((TraceCorrupt, TraceTruncated, TraceVersion)):
            TraceReading(path)
    finally:
        path.unlink()


@given(st.lists(st.tuples(st.integers(600, 250_000), st.integers(0, 255)), max_size=60))
def test_a_damaged_trace_does_not_break_the_reader(damage: list[tuple[int, int]]) -> None:
    path = Path("/tmp") / f"holdfast-damage-{os.getpid()}.trace"
    writer = TraceWriter(path, rank=0, world_size=1, records=64)
    write(PythonRecorder(writer, "/nowhere/torch"), 20)
    for at, value in damage:
        writer.map[at % len(writer.map)] = value
    try:
        read = TraceReading(path)
        read.step()
        read.recent(100)
        read.pending()
        trace_file.HEADS.pack_into(writer.map, trace_file.RECORDS_HEAD, 21)
        read.pending()
        read.progress()
        read.last_change()
    except (TraceCorrupt, TraceTruncated, TraceVersion):
        pass
    finally:
        path.unlink()


def test_a_full_file_system_is_reported_at_creation(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ShmUnavailable, match="cannot create the trace file"):
        TraceWriter(blocked / "rank0.trace", rank=0, world_size=1)


def test_full_notes_do_not_damage_the_ring(trace: TraceWriter) -> None:
    for number in range(3000):
        trace.note(TraceNote.WORD, f"{number:06d} " + "x" * 200)
    recorder = PythonRecorder(trace, "/nowhere/torch")
    write(recorder, 3)
    read = TraceReading(trace.path)
    assert len(read.table()) == 3
    assert 2000 < len(read.read_notes().words) < 3000


def test_steps_are_inferred_from_the_repeating_pattern() -> None:
    table = np.zeros(90, RECORD_DTYPE)
    for index, row in enumerate(table):
        row["number"] = index + 1
        row["operation"] = (1, 1, 2)[index % 3]
        row["elements"] = (100, 200, 1)[index % 3]
        row["entered"] = (index // 3) * 50_000_000 + (index % 3) * 1_000_000
    durations = step_seconds(table)
    assert len(durations) >= 25
    assert np.allclose(durations, 0.05)
    assert len(step_seconds(table[:2])) == 0


def test_call_sites_are_read_with_their_function(trace: TraceWriter) -> None:
    trace.note(TraceNote.SITE, 7, 12, "train_step", "/job/a train.py")
    assert TraceReading(trace.path).read_notes().sites[7] == SourceLine(
        "/job/a train.py", 12, "train_step"
    )
