"""Boxes are read whole, torn, cut, from another version and full of noise."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import blackbox
from holdfast.blackbox import RECORD_BYTES, BoxWriter, Note
from holdfast.errors import BoxNoise, BoxTruncated, BoxUnreadable, BoxVersion, ShmUnavailable
from holdfast.facts.boxes import RECORD_DTYPE, Box, step_seconds
from holdfast.facts.ranks import Place
from holdfast.runtime.recorder.pens import Call, PythonPen

ALL_REDUCE = blackbox.OPERATIONS.index("all_reduce")
FLOAT32 = blackbox.DTYPES.index("float32")
CALL = Call(elements=12, dtype=FLOAT32, shape=(3, 4), tensors=1, reduction=0)


@pytest.fixture
def box(tmp_path: Path) -> BoxWriter:
    """A fresh box of rank 3 of 8."""
    return BoxWriter(tmp_path / "rank3.box", rank=3, world_size=8, local_rank=1, generation=2, records=64)


def write(pen: PythonPen, count: int, *, finish: bool = True) -> list[int]:
    """Record ``count`` all-reduces of 12 float32 in group ``0``."""
    numbers = []
    for _ in range(count):
        number = pen.record("0", ALL_REDUCE, CALL)
        if finish:
            pen.finish(number)
        numbers.append(number)
    return numbers


def test_layout_sizes_match_the_reader() -> None:
    assert blackbox.RECORD.size == RECORD_BYTES == RECORD_DTYPE.itemsize
    assert blackbox.HEADER.size <= blackbox.RECORDS_HEAD
    assert blackbox.STEP + blackbox.STEP_SLOT.size <= blackbox.HEADER_BYTES


def test_what_is_written_is_read(box: BoxWriter) -> None:
    pen = PythonPen(box, "/nowhere/torch")
    write(pen, 2)
    pending = pen.record("0", ALL_REDUCE, CALL)
    box.note_json(Note.MEMBERS, {"name": "0", "ranks": [0, 3], "description": "default"})
    read = Box(box.path)
    assert (read.header.rank, read.header.world_size, read.header.generation) == (3, 8, 2)
    assert read.header.pid == os.getpid()
    calls = read.recent(10)
    assert [call.sequence for call in calls] == [1, 2, 3]
    assert [call.completed is None for call in calls] == [False, False, True]
    assert calls[0].name == "all_reduce"
    assert (calls[0].dtype, calls[0].shape, calls[0].elements, calls[0].reduce) == ("float32", (3, 4), 12, "sum")
    assert calls[0].site is not None
    assert calls[0].site.file == __file__
    assert read.pending() == [calls[2]]
    assert read.progress()["0"].entered == 3
    assert read.progress()["0"].completed == 2
    assert read.read_notes().groups()["0"].ranks == (0, 3)
    assert pending == read.begun


def test_the_ring_keeps_the_newest(box: BoxWriter) -> None:
    write(PythonPen(box, "/nowhere/torch"), 150)
    table = Box(box.path).table()
    assert list(table["number"]) == list(range(87, 151))


def test_torn_records_are_dropped(box: BoxWriter) -> None:
    write(PythonPen(box, "/nowhere/torch"), 10)
    torn = box.ring_at + 4 * RECORD_BYTES
    box.map[torn + 24] ^= 0xFF  # the sequence of record 5, as if half of it had been written
    assert [row["number"] for row in Box(box.path).table()] == [1, 2, 3, 4, 6, 7, 8, 9, 10]


def test_steps_and_phases(box: BoxWriter) -> None:
    assert Box(box.path).step().counted == 0
    box.step()
    box.step()
    box.step(41)
    box.step()  # the optimizer's hook no longer counts once the script says its steps
    box.phase("checkpoint", 90.0)
    step = Box(box.path).step()
    assert (step.number, step.counted, step.phase, step.budget_s) == (41, 3, "checkpoint", 90.0)


def test_a_box_outlives_the_kill_of_its_writer(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from holdfast.blackbox import BoxWriter
from holdfast.runtime.recorder.pens import PythonPen
box = BoxWriter(Path({str(tmp_path / "dead.box")!r}), rank=0, world_size=1)
pen = PythonPen(box, "/nowhere/torch")
pen.finish(pen.begin("0", {ALL_REDUCE}))
pen.begin("0", {ALL_REDUCE})
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == -signal.SIGKILL
    (pending,) = Box(tmp_path / "dead.box").pending()
    assert pending.sequence == 2


@pytest.mark.parametrize("size", [0, 100, blackbox.HEADER_BYTES, 100_000])
def test_a_box_cut_short_is_refused(box: BoxWriter, tmp_path: Path, size: int) -> None:
    cut = tmp_path / "cut.box"
    cut.write_bytes(bytes(box.map[:size]))
    with pytest.raises(BoxTruncated, match=r"cut\.box"):
        Box(cut)


def test_another_version_is_named(box: BoxWriter) -> None:
    struct.pack_into("<I", box.map, 8, 99)
    with pytest.raises(BoxVersion, match="version 99"):
        Box(box.path)


def test_a_missing_box_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BoxUnreadable, match="cannot read the box"):
        Box(tmp_path / "none.box")


@given(st.binary(min_size=0, max_size=9000))
def test_noise_is_refused_or_read_as_empty(noise: bytes) -> None:
    path = Path("/tmp") / f"holdfast-noise-{os.getpid()}.box"
    path.write_bytes(noise)
    try:
        with pytest.raises((BoxNoise, BoxTruncated, BoxVersion)):
            Box(path)
    finally:
        path.unlink()


@given(st.lists(st.tuples(st.integers(600, 250_000), st.integers(0, 255)), max_size=60))
def test_a_damaged_box_never_breaks_the_reader(damage: list[tuple[int, int]]) -> None:
    path = Path("/tmp") / f"holdfast-damage-{os.getpid()}.box"
    writer = BoxWriter(path, rank=0, world_size=1, records=64)
    write(PythonPen(writer, "/nowhere/torch"), 20)
    for at, value in damage:
        writer.map[at % len(writer.map)] = value
    try:
        read = Box(path)
        read.step()
        read.recent(100)
        read.pending()
        read.progress()
        read.last_change()
    except (BoxNoise, BoxTruncated, BoxVersion):
        pass
    finally:
        path.unlink()


def test_no_room_is_said_before_training_starts(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(ShmUnavailable, match="cannot make the box"):
        BoxWriter(blocked / "rank0.box", rank=0, world_size=1)


def test_full_notes_leave_the_ring_alone(box: BoxWriter) -> None:
    for number in range(3000):
        box.note(Note.WORD, f"{number:06d} " + "x" * 200)
    pen = PythonPen(box, "/nowhere/torch")
    write(pen, 3)
    read = Box(box.path)
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


def test_places_are_read_with_their_function(box: BoxWriter) -> None:
    box.note(Note.SITE, 7, 12, "train_step", "/job/a train.py")
    assert Box(box.path).read_notes().sites[7] == Place("/job/a train.py", 12, "train_step")
