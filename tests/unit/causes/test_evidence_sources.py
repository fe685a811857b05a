"""Each cause names the kinds of evidence that can show it: those whose rules refer to it."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

import holdfast
from holdfast.causes import all_causes
from holdfast.causes.process.no_failure import NO_FAILURE
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

SOURCE = Path(holdfast.__file__).parent
#: Begin of a module's path -> the evidence that its rules judge; the first that fits counts.
RULES = (
    ("diagnose/log_rules", EvidenceSource.LOG),
    ("diagnose/dumps", EvidenceSource.DUMP),
    ("diagnose/stacks", EvidenceSource.STACKS),
    ("diagnose/attach", EvidenceSource.STACKS),
    ("diagnose/memory_snapshot_rules", EvidenceSource.SNAPSHOT),
    ("watcher/", EvidenceSource.TRACE),
    ("host/variable_rules", EvidenceSource.ENVIRONMENT),
    ("host/checkpoint_folder_rules", EvidenceSource.CHECKPOINT),
    ("ckpt/", EvidenceSource.CHECKPOINT),
    ("host/", EvidenceSource.HOST),
    ("preflight/", EvidenceSource.HOST),
    ("launcher/host_gate", EvidenceSource.HOST),
    ("lint/", EvidenceSource.SOURCE),
    ("plan/", EvidenceSource.PLAN),
)
#: Causes that rules derive without naming them, or that a rule of the watcher's package names for
#: another source.
DERIVED = {
    "gpu-memory-fragmented": {EvidenceSource.LOG, EvidenceSource.TRACE},
    "gpu-memory-taken-by-others": {EvidenceSource.LOG, EvidenceSource.TRACE},
    "silent-corruption-by-misaligned-collectives": {EvidenceSource.TRACE},
    "tensors-kept-over-steps": {EvidenceSource.SNAPSHOT},
}


def rules_by_cause() -> dict[str, set[EvidenceSource]]:
    """Return the evidence of each cause, from the imports of its constant."""
    found: dict[str, set[EvidenceSource]] = defaultdict(set)
    for file in SOURCE.rglob("*.py"):
        path = file.relative_to(SOURCE).as_posix()
        source = next((source for begin, source in RULES if path.startswith(begin)), None)
        if source is not None:
            for name in re.findall(
                r"^from holdfast\.causes\.\w+\.(\w+) import", file.read_text(), re.MULTILINE
            ):
                found[name.replace("_", "-")].add(source)
    return found


def test_each_cause_names_the_evidence_whose_rules_refer_to_it() -> None:
    found = rules_by_cause()
    wrong = {}
    for cause in all_causes():
        expected = DERIVED.get(cause.name, found[cause.name])
        if cause.signals or cause.log_examples:
            expected = expected | {EvidenceSource.LOG}
        if set(cause.evidence_sources) != expected:
            wrong[cause.name] = sorted(expected)
    assert wrong == {}


@pytest.mark.parametrize("cause", all_causes(), ids=lambda cause: cause.name)
def test_a_cause_that_a_log_shows_has_an_example_log(cause: Cause) -> None:
    if EvidenceSource.LOG in cause.evidence_sources and cause is not NO_FAILURE:
        # test_log_examples.py judges each of them.
        assert cause.log_examples or any(signal.examples for signal in cause.signals)
