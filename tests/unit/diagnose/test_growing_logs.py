"""Growing logs are read incrementally; truncated, rotated and rewritten logs from the beginning."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnose.evidence import EvidenceFile
from holdfast.diagnose.evidence.gather import gather
from holdfast.diagnose.logs import LogFacts
from holdfast.diagnose.logs.growing_logs import GrowingLogs
from holdfast.diagnose.logs.reader import read_logs

LINES = (
    "[rank2]: step 7 loss 1.0\n",
    "all well\n",
    "[rank1]: Traceback (most recent call last):\n",
    "\n",
    '[rank1]:   File "/job/a.py", line 3, in f\n',
    "[rank1]: KeyError: 'x'\n",
    "[rank2]: last enqueued NCCL work: 41, last completed NCCL work: 40.\n",
    "Connection closed by peer\n",
    "[rank1]:     use(x)\n",
    "[rank1]: _queue.Empty\n",
)


def comparable_facts(facts: LogFacts) -> tuple[object, ...]:
    signals = [(one.name, one.line, one.fields) for one in facts.signals]
    return signals, facts.tracebacks, facts.last, facts.lines, facts.bytes


def rotate(path: Path) -> None:
    path.rename(path.with_suffix(".1"))


def truncate(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".2"))
    os.truncate(path, 0)


CHANGES = st.one_of(
    st.lists(st.sampled_from(LINES), min_size=1, max_size=6).map("".join),
    st.sampled_from([rotate, truncate, Path.unlink]),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a.log", "b.log"]), CHANGES), min_size=1, max_size=8))
def test_incremental_reading_equals_reading_everything(changes):
    with tempfile.TemporaryDirectory() as name:
        folder, logs = Path(name), GrowingLogs()
        for number, (log, change) in enumerate(changes):
            if isinstance(change, str):
                with (folder / log).open("a") as file:
                    file.write(f"{change}at {number}\n")
            elif (folder / log).exists():
                change(folder / log)
            grown = logs.read(pieces(folder))
            assert not logs.has_partial_line
            assert comparable_facts(grown) == comparable_facts(read_logs(pieces(folder)))


def pieces(folder):
    return [piece for piece in gather([str(folder)]) if isinstance(piece, EvidenceFile)]


def test_a_line_written_in_two_parts_is_one_line(tmp_path):
    path, logs = tmp_path / "a.log", GrowingLogs()
    path.write_text("all well\n[rank1]: KeyErr")
    assert logs.read(pieces(tmp_path)).tracebacks == ()
    assert logs.has_partial_line
    with path.open("a") as file:
        file.write("or: 17\n")
    found = logs.read(pieces(tmp_path))
    assert [(one.type, one.line.number) for one in found.tracebacks] == [("KeyError", 2)]
    assert not logs.has_partial_line


def test_only_added_bytes_are_read(tmp_path):
    path, logs = tmp_path / "a.log", GrowingLogs()
    path.write_text(LINES[0] * 400_000)
    logs.read(pieces(tmp_path))
    with path.open("a") as file:
        file.write("".join(LINES[2:6]))
    before = bytes_read()
    found = logs.read(pieces(tmp_path))
    assert bytes_read() - before < 200_000
    assert [(one.type, one.line.number) for one in found.tracebacks] == [("KeyError", 400_004)]
    assert found.lines == 400_004


def bytes_read():
    """Return the bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_facts_of_a_rewritten_log_are_dropped(tmp_path):
    path, logs = tmp_path / "a.log", GrowingLogs()
    path.write_text("".join(LINES[2:6]))
    assert logs.read(pieces(tmp_path)).tracebacks
    path.write_text(LINES[1] * 50)
    found = logs.read(pieces(tmp_path))
    assert (found.tracebacks, found.lines) == ((), 50)
    path.unlink()
    assert logs.read(pieces(tmp_path)).lines == 0


def test_a_utf16_log_is_read_as_a_whole(tmp_path):
    path, logs = tmp_path / "a.log", GrowingLogs()
    path.write_text("".join(LINES[:2]), "utf-16")
    assert logs.read(pieces(tmp_path)).lines == 2
    path.write_text("".join(LINES[2:6]), "utf-16")
    assert logs.read(pieces(tmp_path)).tracebacks[0].type == "KeyError"
