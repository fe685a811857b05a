"""The logs of failures that were really run here are judged as a person would judge them."""

from __future__ import annotations

import io

import pytest

from holdfast.facts.evidence import Kind, Piece
from holdfast.facts.logs import reader
from holdfast.rules.causes import by_name
from holdfast.rules.logs.judge import judge
from tests.corpus.expected import EXPECTED, HEALTHY
from tests.corpus.make import CASES, HERE, run


def judged(name: str, text: bytes | None = None) -> tuple[str, int | None]:
    """Cause and rank that are named for a case."""
    raw = (CASES / name / "log.txt").read_bytes() if text is None else text
    root = judge(reader.read([Piece(name, Kind.LOG, len(raw), lambda: io.BytesIO(raw))])).root
    return (root.cause, root.subject.rank) if root else (HEALTHY, None)


def test_every_program_has_its_case_and_its_cause() -> None:
    assert {path.stem for path in (HERE / "programs").glob("*.py")} == EXPECTED.keys()
    assert {path.name for path in CASES.iterdir()} == EXPECTED.keys()
    for expected in EXPECTED.values():
        assert by_name(expected.cause).name == expected.cause


@pytest.mark.parametrize("name", EXPECTED)
def test_a_case_is_judged_right(name: str) -> None:
    cause, rank = judged(name)
    assert cause in (EXPECTED[name].cause, *EXPECTED[name].accepted)
    assert EXPECTED[name].rank in (None, rank)


@pytest.mark.matrix
@pytest.mark.timeout(90)
@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected.shm_bytes is None])
def test_a_case_that_is_run_anew_is_judged_right(name: str) -> None:
    cause, rank = judged(name, run(name, EXPECTED[name]).encode())
    assert cause in (EXPECTED[name].cause, *EXPECTED[name].accepted)
    assert EXPECTED[name].rank in (None, rank)
