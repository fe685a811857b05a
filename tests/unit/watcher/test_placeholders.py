"""Placeholders in the commands of remedies."""

from __future__ import annotations

import pytest

from holdfast.core.findings import Finding, Level, Remedy, Verdict
from holdfast.watcher.rules.placeholders import fill_launch, fill_remedy, fill_verdict

SCRIPT = ("train.py", "--name", "two words")


def test_known_values_are_substituted_as_whole_words() -> None:
    remedy = Remedy(text="PID", command="kill -9 PID # PIDS, OTHER_HOST, HOST, $HOST")
    filled = fill_remedy(remedy, {"PID": "7", "HOST": r"node\1", "SCRIPT": ""})
    assert filled == Remedy(text="PID", command=r"kill -9 7 # PIDS, OTHER_HOST, node\1, $HOST")
    assert fill_remedy(Remedy(text="none"), {"PID": "7"}).command is None


def test_all_findings_of_a_verdict_are_filled() -> None:
    remedies = (Remedy(text="restart", command="torchrun SCRIPT"),)
    finding = Finding(code="X", cause="x", level=Level.ERROR, message="m", remedies=remedies)
    verdict = Verdict(question="?", root=finding, consequences=(finding,), suspects=(finding,))
    filled = fill_verdict(verdict, (), SCRIPT)
    assert filled.root is not None
    commands = {
        entry.remedies[0].command for entry in (filled.root, *filled.consequences, *filled.suspects)
    }
    assert commands == {"torchrun train.py --name 'two words'"}
    assert fill_verdict(Verdict(question="?"), (), ("x",)) == Verdict(question="?")


@pytest.mark.parametrize(
    ("command", "options", "expected"),
    [
        (
            "holdfast run --max-restarts 3 SCRIPT",
            "--standalone --nproc_per_node 4 --max_restarts=0 --inject hang@rank=1",
            "holdfast run --standalone --nproc_per_node 4 --max-restarts 3",
        ),
        (
            "A=1 holdfast run --standalone --nproc-per-node 1 SCRIPT",
            "--nnodes 2 --nproc 8 --rdzv-endpoint a:1 --rdzv_id=7 --master-port 5 --recorder off -m",
            "A=1 holdfast run --recorder off -m --standalone --nproc-per-node 1",
        ),
        ("hf download MODEL && holdfast run SCRIPT", "", "hf download MODEL && holdfast run"),
        ("holdfast check", "--nnodes 2", None),
    ],
)
def test_launch_options_are_repeated_unless_superseded(command, options, expected) -> None:
    filled = fill_launch(Remedy(text="", command=command), options.split(), SCRIPT).command
    assert filled == (f"{expected} train.py --name 'two words'" if expected else command)
