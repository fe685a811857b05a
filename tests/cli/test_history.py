"""`holdfast history`: the story of a run, for people and for scripts."""

import json

import pytest

from holdfast import cli
from holdfast.actions.ledger import Event, Ledger, Record
from holdfast.actions.policy import Course, Decision, Failure, Scene
from holdfast.findings import Fact

FAILURE = Failure(at=102.5, generation=0, code="PROC006", cause="rank-killed", message="rank 1 was killed by SIGKILL",
                  rank=1, host="a", evidence=(Fact(text="ended by SIGKILL", origin="exit status"),),
                  scene=Scene(step=57, saved=50, ran_s=61.0))  # fmt: skip


@pytest.fixture
def run(tmp_path):
    for name in ("20260101-1", "20260102-2"):
        folder = tmp_path / name
        folder.mkdir()
        book = Ledger(folder)
        book.add(Record(event=Event.BEGUN, at=100.0, host="a", text=f"train.py {name}"))
        book.add(Record(event=Event.STARTED, at=101.0, host="a", nodes=1, world_size=2, ranks=(0, 1)))
        decision = Decision(course=Course.RESTART, reason="restart 1 of 9")
        book.add(Record(event=Event.FAILED, at=102.5, host="a", failure=FAILURE, decision=decision, folder="i/0"))
        book.add(Record(event=Event.ENDED, at=110.0, host="a", status=93, text="after 1 incident"))
    return folder


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        cli.main(["history", *map(str, arguments)])
    told = capsys.readouterr()
    return end.value.code or 0, told.out, told.err


def test_the_story_has_what_failed_why_and_what_was_done(run, capsys):
    status, out, _ = said(capsys, run)
    assert status == 0
    assert [line.split("  ", 1)[1].strip() for line in out.splitlines()] == [
        "run begins on a: train.py 20260102-2",
        "+1.00 s      generation 0: ranks 0-1 of 2 here, 1 node",
        "+2.50 s      rank 1 was killed by SIGKILL",
        "cause  PROC006 rank-killed",
        "progress  ran 1 min 01 s, step 57, saved step 50",
        "evidence  ended by SIGKILL (exit status)",
        "decision  restart 1 of 9",
        "report  i/0/report.html",
        "+10.0 s      run ends with status 93, after 1 incident",
    ]


def test_without_a_run_the_newest_is_told(run, capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(run.parent))
    assert "train.py 20260102-2" in said(capsys)[1]


def test_scripts_get_every_record(run, capsys):
    told = json.loads(said(capsys, run, "--json")[1])
    assert (told["command"], told["run"]) == ("history", str(run))
    assert [each["event"] for each in told["records"]] == ["begun", "started", "failed", "ended"]
    assert told["records"][2]["failure"]["scene"]["saved"] == 50


@pytest.mark.parametrize("where", ["nowhere", "."])
def test_where_there_is_no_ledger_one_sentence_says_so(tmp_path, capsys, where):
    status, out, err = said(capsys, tmp_path / where)
    assert (status, out) == (2, "")
    assert "no ledger.jsonl is in it" in err
    assert len(err.splitlines()) == 1


def test_noise_is_one_sentence(tmp_path, capsys):
    (tmp_path / "ledger.jsonl").write_bytes(b"\0\xff" * 99)
    status, _, err = said(capsys, tmp_path)
    assert status == 2
    assert "no line of it has the form" in err
