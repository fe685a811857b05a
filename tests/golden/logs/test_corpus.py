"""The logs of failures that were really run here are judged as a person would judge them."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.causes import by_name
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.log_rules.judge import judge
from holdfast.diagnose.logs import reader
from tests.golden.logs.case import HEALTHY
from tests.golden.logs.expected import EXPECTED
from tests.golden.logs.launchers import LAUNCHERS
from tests.golden.logs.make import CASES, HERE, lacking, run

# What the rules miss, in cause or in rank; strict: a name goes as soon as its case is judged right.
MISSED = {"wrong_port", "lightning_config"}


def cases(names: Iterable[str]) -> list[object]:
    """The cases as parameters; those that are missed are expected to fail."""
    missed = pytest.mark.xfail(reason="the rules miss it", raises=AssertionError)
    return [pytest.param(name, marks=missed if name in MISSED else ()) for name in names]


def judged(logs: dict[str, str]) -> tuple[str, int | None]:
    """Return the root cause and rank in the logs of a job, by file."""
    root = judge(
        reader.read_logs([_piece(name, text.encode()) for name, text in sorted(logs.items())])
    ).root
    return (root.cause, root.subject.rank) if root else (HEALTHY, None)


def _piece(name: str, raw: bytes) -> EvidenceFile:
    return EvidenceFile(name, EvidenceKind.LOG, len(raw), lambda: io.BytesIO(raw))


def kept(name: str) -> dict[str, str]:
    """The logs of a case as they were made, by file."""
    folder = CASES / name
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "case.json"]
    return {str(Path(path).relative_to(folder)): path.read_bytes().decode() for path in files}


def test_every_program_has_its_case_and_its_cause() -> None:
    programs = {expected.program or name for name, expected in EXPECTED.items()}
    assert {path.stem for path in (HERE / "programs").glob("*.py")} == programs
    assert {path.name for path in CASES.iterdir()} == EXPECTED.keys()
    for expected in EXPECTED.values():
        assert by_name(expected.cause).name == expected.cause
        assert all(by_name(name) for name in expected.accepted)
        assert expected.launcher in LAUNCHERS
    assert EXPECTED.keys() >= MISSED


@pytest.mark.parametrize("name", cases(EXPECTED))
def test_a_case_is_judged_right(name: str) -> None:
    cause, rank = judged(kept(name))
    assert cause in (EXPECTED[name].cause, *EXPECTED[name].accepted)
    assert EXPECTED[name].rank in (None, rank)


@pytest.mark.matrix
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "name", cases(name for name, expected in EXPECTED.items() if not expected.as_root)
)
def test_a_case_that_is_run_anew_is_judged_right(name: str) -> None:
    if why := lacking(EXPECTED[name]):
        pytest.skip(why)
    cause, rank = judged(run(name, EXPECTED[name]))
    assert cause in (EXPECTED[name].cause, *EXPECTED[name].accepted)
    assert EXPECTED[name].rank in (None, rank)
