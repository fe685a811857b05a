"""The ledger: appended, synced, read again, and never trusted."""

import pytest

from holdfast.actions import ledger
from holdfast.actions.ledger import Event, Ledger, Record
from holdfast.actions.policy import Decision, Failure
from holdfast.actions.policy.decisions import Course
from holdfast.adjustments import Adjustments, Window
from holdfast.errors import BadValue, MissingFile
from holdfast.findings import Fact

FAILURE = Failure(at=5.0, generation=1, cause="rank-killed", message="rank 1 was killed", rank=1, host="a",
                  evidence=(Fact(text="ended by SIGKILL", origin="exit status"),), dead=(1,))  # fmt: skip
DECISION = Decision(course=Course.RESTART, reason="restart 2 of 9", adjustments=Adjustments(skip=(Window(3, 4),)))


def failed(at=5.0):
    return Record(event=Event.FAILED, at=at, generation=1, failure=FAILURE, decision=DECISION)


def test_what_was_written_is_read_again(tmp_path):
    book = Ledger(tmp_path)
    lines = [Record(event=Event.BEGUN, at=1.0, text="train.py"), failed(), Record(event=Event.ENDED, at=9.0, status=93)]
    for line in lines:
        book.add(line)
    assert ledger.read(tmp_path) == ledger.read(tmp_path / ledger.FILE) == tuple(lines)
    assert ledger.past(lines) == book.past
    assert book.past[0].failure == FAILURE


def test_a_line_that_was_cut_off_costs_no_other(tmp_path):
    book = Ledger(tmp_path)
    book.add(failed())
    with book.path.open("ab") as file:
        file.write(b'{"event":"failed","at":5.0,"failu')
    assert ledger.read(tmp_path) == (failed(),)


def test_a_writer_goes_on_behind_a_line_that_was_cut_off(tmp_path):
    (tmp_path / ledger.FILE).write_bytes(b'{"event":"fai')
    Ledger(tmp_path).add(failed())
    assert ledger.read(tmp_path) == (failed(),)


@pytest.mark.parametrize(
    "content", [b"no json at all", b"[[[[" * 5000, b'{"event":"failed","at":1,"schema":"other"}', b"\0"]
)
def test_what_is_no_ledger_is_one_sentence(tmp_path, content):
    (tmp_path / ledger.FILE).write_bytes(content)
    with pytest.raises(BadValue, match=r"no line of it has the form holdfast/ledger/1"):
        ledger.read(tmp_path)


def test_no_ledger_is_one_sentence(tmp_path):
    with pytest.raises(MissingFile, match="give the folder of a run"):
        ledger.read(tmp_path)


def test_a_disk_that_takes_nothing_does_not_make_the_policy_forget(tmp_path):
    book = Ledger(tmp_path / "gone")
    book.add(failed())
    assert "no such file" in book.trouble
    assert len(book.past) == 1
