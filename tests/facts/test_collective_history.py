"""The history of collectives is told wherever somebody looks for what went wrong."""

from __future__ import annotations

import json
import sys
import tarfile

import pytest
from msgspec.structs import replace

from holdfast.actions import incident
from holdfast.actions.diagnose import diagnose, page
from holdfast.actions.run_folder import RunFolder
from holdfast.cli import main
from holdfast.facts import collective_history
from holdfast.facts.evidence import Kind
from holdfast.facts.node import Summary
from holdfast.findings import Verdict
from tests.test_history import absent, after, event

TOLD = (
    "all_reduce of 467,019,003 float32 at train.py:41 (group '0', between hosts, training), in 2 of 2 runs: 2 time-outs"
)
LEARNT = "limit of all_reduce of 467,019,003 float32 at train.py:41 raised from 10 min 00 s to 20 min 00 s: 2 time-outs"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs in which two hosts have kept a history."""
    monkeypatch.delenv("HOLDFAST_HISTORY", raising=False)
    folder = tmp_path / "runs" / collective_history.FOLDER
    folder.mkdir(parents=True)
    (folder / "one.json").write_bytes(collective_history.kept(after(event(), event())))
    other = after(event(), replace(absent(), site="eval.py:7", at=2e9))
    (folder / "two.json").write_bytes(collective_history.kept(other))
    (folder / "three.json").write_bytes(b"{")
    (folder / "four.json").mkdir()
    return tmp_path / "runs"


def test_hosts_are_merged_and_the_latest_comes_first(runs):
    place = collective_history.folder_of(runs)
    told = collective_history.facts(collective_history.read(place), str(place))
    assert told[0].text.startswith("all_reduce of 467,019,003 float32 at eval.py:7")
    assert told[0].time == 2e9
    assert told[1].text.startswith(TOLD)
    assert told[2].text.startswith(LEARNT)
    assert len(told) == 4
    assert {fact.origin for fact in told} == {str(place)}


def test_the_users_folder_counts(runs, tmp_path):
    assert collective_history.folder_of(runs, {"HOLDFAST_HISTORY": str(tmp_path)}) == tmp_path


def test_nothing_is_told_of_a_folder_that_is_not_there(tmp_path):
    assert collective_history.facts(collective_history.read(tmp_path / "none"), "x") == ()


def test_diagnose_tells_it_from_a_folder_and_from_an_archive(runs, tmp_path):
    (runs / "history" / "three.json").unlink()
    found = diagnose([str(runs)])
    assert {item.kind for item in found.read} == {Kind.HISTORY}
    assert [fact.text for fact in found.collectives if fact.text.startswith(TOLD)]
    assert found.exit_status == 3  # nothing is known of this job
    assert TOLD.replace("'", "&#39;") in page(found)
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.add(runs / "history" / "one.json", "history.json")
        archive.add(runs / "history" / "one.json", "incidents/0/history.json")
    found = diagnose([str(tmp_path / "x.tgz")])
    assert found.collectives[0].text.startswith(TOLD)  # the same history twice is one
    assert found.collectives[0].origin.endswith("and 1 more")


def test_the_command_shows_it(runs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    with pytest.raises(SystemExit):
        main(["diagnose", str(runs / "history" / "one.json")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "collectives that timed out or were slow, over all runs" in shown
    assert "raised from 10 min 00 s to 20 min 00 s" in shown
    with pytest.raises(SystemExit):
        main(["diagnose", "--json", str(runs / "history" / "one.json")])
    assert json.loads(capsys.readouterr().out)["collectives"][0]["text"].startswith(TOLD)


@pytest.mark.parametrize("data", ['{"schema": "holdfast/history/1", "runs": -1}', '{"schema": "holdfast/history/9"}'])
def test_a_history_that_is_none_is_ignored_with_a_reason(tmp_path, data):
    file = tmp_path / "history.json"
    file.write_text(data)
    found = diagnose([str(file)])
    assert found.collectives == ()
    assert [item.name for item in found.ignored] == [str(file)]
    assert found.ignored[0].lost
    assert found.exit_status == 2


def test_an_incident_keeps_it_and_its_page_shows_it(runs):
    run = RunFolder(runs, workers=1, records=64)
    start = {"run_dir": str(run.path), "generation": 0, "workers": []}
    table = Summary(time=1.0, silent_since=0.0, world_size=1, ranks=(), groups={})
    folder, shown, finish = incident.begin(run.incidents, Verdict(question="What?"), table, start)
    finish()
    assert TOLD.replace("'", "&#39;") in shown.read_text()
    assert diagnose([str(folder)]).collectives[0].text.startswith("all_reduce")
    run.close()


def test_an_incident_without_it_has_no_such_file(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_HISTORY", raising=False)
    run = RunFolder(tmp_path, workers=1, records=64)
    start = {"run_dir": str(run.path), "generation": 0, "workers": []}
    table = Summary(time=1.0, silent_since=0.0, world_size=1, ranks=(), groups={})
    folder, _, finish = incident.begin(run.incidents, Verdict(question="What?"), table, start)
    finish()
    assert not (folder / collective_history.FILE).exists()
    run.close()
