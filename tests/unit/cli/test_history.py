"""`holdfast history`: the timeline of a run as text and JSON."""

import json

import pytest

from holdfast import cli
from holdfast.core.failures import JobFailure, JobState, RecoveryAction, RecoveryDecision
from holdfast.core.findings import Fact
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord

FAILURE = JobFailure(
    at=102.5,
    generation=0,
    code="PROC006",
    cause="rank-killed",
    message="rank 1 was killed by SIGKILL",
    rank=1,
    host="a",
    evidence=(Fact(text="ended by SIGKILL", origin="exit status"),),
    job_state=JobState(step=57, saved=50, ran_s=61.0),
)


@pytest.fixture
def run(tmp_path):
    for name in ("20260101-1", "20260102-2"):
        folder = tmp_path / name
        folder.mkdir()
        ledger_writer = Ledger(folder)
        ledger_writer.add(
            LedgerRecord(event=LedgerEvent.BEGUN, at=100.0, host="a", text=f"train.py {name}")
        )
        ledger_writer.add(
            LedgerRecord(
                event=LedgerEvent.STARTED, at=101.0, host="a", nodes=1, world_size=2, ranks=(0, 1)
            )
        )
        decision = RecoveryDecision(action=RecoveryAction.RESTART, reason="restart 1 of 9")
        ledger_writer.add(
            LedgerRecord(
                event=LedgerEvent.FAILED,
                at=102.5,
                host="a",
                failure=FAILURE,
                decision=decision,
                folder="i/0",
            )
        )
        ledger_writer.add(
            LedgerRecord(
                event=LedgerEvent.ENDED, at=110.0, host="a", status=93, text="after 1 incident"
            )
        )
    return folder


def run_history(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["history", *map(str, arguments)])
    printed = capsys.readouterr()
    return end.value.code or 0, printed.out, printed.err


def test_the_timeline_shows_failure_evidence_and_decision(run, capsys):
    status, out, _ = run_history(capsys, run)
    assert status == 0
    assert [line.split("  ", 1)[1].strip() for line in out.splitlines()] == [
        "run started on a: train.py 20260102-2",
        "+1.00 s      generation 0: ranks 0-1 of 2 here, 1 node",
        "+2.50 s      rank 1 was killed by SIGKILL",
        "cause  PROC006 rank-killed",
        "progress  ran 1 min 01 s, step 57, saved step 50",
        "evidence  ended by SIGKILL (exit status)",
        "decision  restart 1 of 9",
        "report  i/0/report.html",
        "+10.0 s      run ended with status 93, after 1 incident",
    ]


def test_without_a_run_the_newest_is_shown(run, capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(run.parent))
    assert "train.py 20260102-2" in run_history(capsys)[1]


def test_json_contains_every_record(run, capsys):
    printed = json.loads(run_history(capsys, run, "--json")[1])
    assert (printed["command"], printed["run"]) == ("history", str(run))
    assert [each["event"] for each in printed["records"]] == ["begun", "started", "failed", "ended"]
    assert printed["records"][2]["failure"]["scene"]["saved"] == 50
    assert printed["records"][2]["decision"]["course"] == "restart"


@pytest.mark.parametrize(
    ("where", "why"), [("nowhere", "there is no such file"), (".", "it contains no ledger.jsonl")]
)
def test_a_missing_ledger_is_reported(tmp_path, capsys, where, why):
    status, out, err = run_history(capsys, tmp_path / where)
    assert (status, out) == (2, "")
    assert why in err
    assert len(err.splitlines()) == 1


def test_an_invalid_ledger_is_reported(tmp_path, capsys):
    (tmp_path / "ledger.jsonl").write_bytes(b"\0\xff" * 99)
    status, _, err = run_history(capsys, tmp_path)
    assert status == 2
    assert "it contains no line of the schema" in err
