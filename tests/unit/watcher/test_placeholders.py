"""Placeholders in the commands of remedies."""

from __future__ import annotations

from holdfast.core.findings import Finding, Level, Remedy, Verdict
from holdfast.watcher.rules.placeholders import fill_remedy, fill_verdict


def test_known_values_are_substituted_as_whole_words() -> None:
    remedy = Remedy(text="PID", command="kill -9 PID # PIDS, OTHER_HOST, HOST")
    filled = fill_remedy(remedy, {"PID": "7", "HOST": r"node\1", "SCRIPT": ""})
    assert filled == Remedy(text="PID", command=r"kill -9 7 # PIDS, OTHER_HOST, node\1")
    assert fill_remedy(Remedy(text="none"), {"PID": "7"}).command is None


def test_all_findings_of_a_verdict_are_filled() -> None:
    remedies = (Remedy(text="restart", command="holdfast run SCRIPT"),)
    finding = Finding(code="X", cause="x", level=Level.ERROR, message="m", remedies=remedies)
    verdict = Verdict(question="?", root=finding, consequences=(finding,), suspects=(finding,))
    filled = fill_verdict(verdict, {"SCRIPT": "/job/train.py"})
    assert filled.root is not None
    commands = {
        entry.remedies[0].command for entry in (filled.root, *filled.consequences, *filled.suspects)
    }
    assert commands == {"holdfast run /job/train.py"}
    assert fill_verdict(Verdict(question="?"), {"SCRIPT": "x"}) == Verdict(question="?")
