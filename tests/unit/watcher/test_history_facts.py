"""Facts from the history of collectives, in diagnoses and incidents."""

from __future__ import annotations

import html
import json
import re
import sys
import tarfile

import pytest
from msgspec.structs import replace

from holdfast.cli import main
from holdfast.core.findings import Verdict
from holdfast.diagnose.diagnosis_page import write_diagnosis_page
from holdfast.diagnose.evidence import EvidenceKind
from holdfast.diagnose.pipeline import diagnose
from holdfast.watcher import history_facts
from holdfast.watcher import incidents as watcher_incidents
from holdfast.watcher.agent_messages import StartWatching
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.run_folder import RunFolder
from tests.unit.core.test_collective_history import absent, after, event

PROBLEM = "all_reduce of 467,019,003 float32 at train.py:41 (group '0', between hosts, training), in 2 of 2 runs: 2 timeouts"
ADVICE = "timeout of all_reduce of 467,019,003 float32 at train.py:41 raised from 10 min 00 s to 20 min 00 s: 2 timeouts"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Return a folder of runs with the histories of two hosts."""
    monkeypatch.delenv("HOLDFAST_HISTORY", raising=False)
    folder = tmp_path / "runs" / history_facts.FOLDER
    folder.mkdir(parents=True)
    (folder / "one.json").write_bytes(history_facts.encode_history(after(event(), event())))
    other = after(event(), replace(absent(), site="eval.py:7", at=2e9))
    (folder / "two.json").write_bytes(history_facts.encode_history(other))
    (folder / "three.json").write_bytes(b"{")
    (folder / "four.json").mkdir()
    return tmp_path / "runs"


def test_histories_of_hosts_are_merged_newest_first(runs):
    place = history_facts.history_folder(runs)
    facts = history_facts.history_facts(history_facts.read_histories(place), str(place))
    assert facts[0].text.startswith("all_reduce of 467,019,003 float32 at eval.py:7")
    assert facts[0].time == 2e9
    assert facts[1].text.startswith(PROBLEM)
    assert facts[2].text.startswith(ADVICE)
    assert len(facts) == 4
    assert {fact.origin for fact in facts} == {str(place)}


def test_the_configured_folder_is_used(runs, tmp_path):
    assert history_facts.history_folder(runs, {"HOLDFAST_HISTORY": str(tmp_path)}) == tmp_path


def test_a_missing_folder_gives_no_facts(tmp_path):
    assert history_facts.history_facts(history_facts.read_histories(tmp_path / "none"), "x") == ()


def text_of(page: str) -> str:
    """Return the text of a page without its elements."""
    return html.unescape(re.sub("<.*?>", "", page))


def test_diagnose_reads_a_history_from_a_folder_and_an_archive(runs, tmp_path):
    (runs / "history" / "three.json").unlink()
    found = diagnose([str(runs)])
    assert {item.kind for item in found.read} == {EvidenceKind.HISTORY}
    assert [fact.text for fact in found.collectives if fact.text.startswith(PROBLEM)]
    assert found.exit_status == 3  # no evidence of this job
    assert PROBLEM in text_of(write_diagnosis_page(found))
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.add(runs / "history" / "one.json", "history.json")
        archive.add(runs / "history" / "one.json", "incidents/0/history.json")
    found = diagnose([str(tmp_path / "x.tgz")])
    assert found.collectives[0].text.startswith(PROBLEM)  # duplicates are merged
    assert found.collectives[0].origin.endswith("and 1 more")


def test_the_command_shows_the_history(runs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["holdfast"])
    with pytest.raises(SystemExit):
        main(["diagnose", str(runs / "history" / "one.json")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "collectives that timed out or were slow in previous runs" in shown
    assert "raised from 10 min 00 s to 20 min 00 s" in shown
    with pytest.raises(SystemExit):
        main(["diagnose", "--json", str(runs / "history" / "one.json")])
    assert json.loads(capsys.readouterr().out)["collectives"][0]["text"].startswith(PROBLEM)


@pytest.mark.parametrize(
    "data", ['{"schema": "holdfast/history/1", "runs": -1}', '{"schema": "holdfast/history/9"}']
)
def test_a_malformed_history_is_ignored_with_a_reason(tmp_path, data):
    file = tmp_path / "history.json"
    file.write_text(data)
    found = diagnose([str(file)])
    assert found.collectives == ()
    assert [item.name for item in found.ignored] == [str(file)]
    assert found.ignored[0].lost
    assert found.exit_status == 2


def test_an_incident_keeps_the_history_and_its_page_shows_it(runs):
    run = RunFolder(runs, workers=1, records=64)
    start = StartWatching(
        generation=0, run_dir=str(run.path), node=0, nodes=1, leader=True, world_size=1, workers=()
    )
    table = JobSummary(time=1.0, silent_since=0.0, world_size=1, ranks=(), groups={})
    folder, shown, finish = watcher_incidents.create_incident(
        run.incidents, Verdict(question="What?"), table, start
    )
    finish()
    assert PROBLEM in text_of(shown.read_text())
    assert diagnose([str(folder)]).collectives[0].text.startswith("all_reduce")
    run.close()


def test_an_incident_without_history_has_no_such_file(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDFAST_HISTORY", raising=False)
    run = RunFolder(tmp_path, workers=1, records=64)
    start = StartWatching(
        generation=0, run_dir=str(run.path), node=0, nodes=1, leader=True, world_size=1, workers=()
    )
    table = JobSummary(time=1.0, silent_since=0.0, world_size=1, ranks=(), groups={})
    folder, _, finish = watcher_incidents.create_incident(
        run.incidents, Verdict(question="What?"), table, start
    )
    finish()
    assert not (folder / history_facts.FILE).exists()
    run.close()
