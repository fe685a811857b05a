"""Writing and reading the ledger."""

import msgspec
import pytest

from holdfast.core import ledger
from holdfast.core.adjustments import Adjustments, StepWindow
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.failures import JobFailure, RecoveryAction, RecoveryDecision
from holdfast.core.findings import Fact
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord

FAILURE = JobFailure(
    at=5.0,
    generation=1,
    cause="rank-killed",
    message="rank 1 was killed",
    rank=1,
    host="a",
    evidence=(Fact(text="ended by SIGKILL", origin="exit status"),),
    dead=(1,),
)
DECISION = RecoveryDecision(
    action=RecoveryAction.RESTART,
    reason="restart 2 of 9",
    adjustments=Adjustments(skip=(StepWindow(3, 4),)),
)


def failed(at=5.0):
    return LedgerRecord(
        event=LedgerEvent.FAILED, at=at, generation=1, failure=FAILURE, decision=DECISION
    )


def test_records_are_read_as_written(tmp_path):
    writer = Ledger(tmp_path)
    lines = [
        LedgerRecord(event=LedgerEvent.BEGUN, at=1.0, text="train.py"),
        failed(),
        LedgerRecord(event=LedgerEvent.ENDED, at=9.0, status=93),
    ]
    for line in lines:
        writer.add(line)
    assert (
        ledger.read_ledger(tmp_path) == ledger.read_ledger(tmp_path / ledger.FILE) == tuple(lines)
    )
    written = (tmp_path / ledger.FILE).read_bytes()
    assert written.count(b'"schema":"holdfast/ledger/1"') == len(lines)
    without = written.replace(b',"schema":"holdfast/ledger/1"', b"")  # as before 2026-11-27
    (tmp_path / "old.jsonl").write_bytes(without)
    assert ledger.read_ledger(tmp_path / "old.jsonl") == tuple(lines)
    assert ledger.past_failures(lines) == writer.past
    assert writer.past[0].failure == FAILURE


def test_the_file_format_is_stable(tmp_path):
    line = (
        b'{"event":"failed","at":5.0,"schema":"holdfast/ledger/1","generation":1,'
        b'"failure":{"at":5.0,"generation":1,"cause":"rank-killed","scene":{"step":7}},'
        b'"decision":{"course":"replace","reason":"restart 2 of 9"}}'
    )
    (tmp_path / ledger.FILE).write_bytes(line + b"\n")
    (record,) = ledger.read_ledger(tmp_path)
    assert record.failure.job_state.step == 7
    assert record.decision.action is RecoveryAction.REPLACE
    assert msgspec.json.encode(record) == line


def test_a_truncated_line_is_skipped(tmp_path):
    writer = Ledger(tmp_path)
    writer.add(failed())
    with writer.path.open("ab") as file:
        file.write(b'{"event":"failed","at":5.0,"failu')
    assert ledger.read_ledger(tmp_path) == (failed(),)


def test_a_line_is_appended_after_a_truncated_one(tmp_path):
    (tmp_path / ledger.FILE).write_bytes(b'{"event":"fai')
    Ledger(tmp_path).add(failed())
    assert ledger.read_ledger(tmp_path) == (failed(),)


@pytest.mark.parametrize(
    "content",
    [b"no json at all", b"[[[[" * 5000, b'{"event":"failed","at":1,"schema":"other"}', b"\0"],
)
def test_a_file_that_is_not_a_ledger_is_rejected(tmp_path, content):
    (tmp_path / ledger.FILE).write_bytes(content)
    with pytest.raises(InvalidValue, match=r"it contains no line of the schema holdfast/ledger/1"):
        ledger.read_ledger(tmp_path)


def test_a_missing_ledger_is_reported(tmp_path):
    with pytest.raises(MissingFile, match="pass the run folder"):
        ledger.read_ledger(tmp_path)


def test_failures_stay_in_memory_if_the_file_cannot_be_written(tmp_path):
    writer = Ledger(tmp_path / "gone")
    writer.add(failed())
    assert "no such file" in writer.write_error
    assert len(writer.past) == 1
