"""The rules judge logs of real failures as an expert does."""

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
from tests.golden.logs.make import CASES, HERE, run, unavailable_reason

#: Cases that the rules misjudge (cause or rank). A case that passes must be removed: xfail is strict.
MISSED = {"wrong_port", "lightning_config"}


def cases(names: Iterable[str]) -> list[object]:
    """Return the cases as parameters; those in MISSED are expected to fail."""
    missed = pytest.mark.xfail(reason="the rules miss it", raises=AssertionError)
    return [pytest.param(name, marks=missed if name in MISSED else ()) for name in names]


def judge_logs(logs: dict[str, str]) -> tuple[str, int | None]:
    """Return the root cause and rank in the logs of a job, by file."""
    root = judge(
        reader.read_logs([_log_file(name, text.encode()) for name, text in sorted(logs.items())])
    ).root
    return (root.cause, root.subject.rank) if root else (HEALTHY, None)


def _log_file(name: str, raw: bytes) -> EvidenceFile:
    return EvidenceFile(name, EvidenceKind.LOG, len(raw), lambda: io.BytesIO(raw))


def stored_logs(name: str) -> dict[str, str]:
    """Return the stored logs of a case, by file."""
    folder = CASES / name
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "case.json"]
    return {str(Path(path).relative_to(folder)): path.read_bytes().decode() for path in files}


def test_every_program_has_a_case_and_a_known_cause() -> None:
    programs = {expected.program or name for name, expected in EXPECTED.items()}
    assert {path.stem for path in (HERE / "programs").glob("*.py")} == programs
    assert {path.name for path in CASES.iterdir()} == EXPECTED.keys()
    for expected in EXPECTED.values():
        assert by_name(expected.cause).name == expected.cause
        assert all(by_name(name) for name in expected.accepted)
        assert expected.launcher in LAUNCHERS
    assert EXPECTED.keys() >= MISSED


@pytest.mark.parametrize("name", cases(EXPECTED))
def test_a_stored_case_is_judged_correctly(name: str) -> None:
    cause, rank = judge_logs(stored_logs(name))
    assert cause in (EXPECTED[name].cause, *EXPECTED[name].accepted)
    assert EXPECTED[name].rank in (None, rank)


@pytest.mark.matrix
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "name", cases(name for name, expected in EXPECTED.items() if not expected.as_root)
)
def test_a_case_that_is_run_again_is_judged_correctly(name: str) -> None:
    if why := unavailable_reason(EXPECTED[name]):
        pytest.skip(why)
    cause, rank = judge_logs(run(name, EXPECTED[name]))
    assert cause in (EXPECTED[name].cause, *EXPECTED[name].accepted)
    assert EXPECTED[name].rank in (None, rank)
