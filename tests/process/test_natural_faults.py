"""``holdfast run`` reports cause, rank and line of the programs in ``tests/faults/natural``.

They run in ``make matrix``; there each program also runs without its fault under torchrun.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.natural_cases import Case, read_cases
from benchmarks.natural_faults import OWN, run_holdfast, run_torchrun
from tests.faults.natural_fixes import FIXES, fixed_text

FOLDERS = (OWN, *(OWN / name for name in ("second", "third", "fourth")))
CASES = {case.name: case for folder in FOLDERS for case in read_cases(folder)}
LIMIT_S = 220.0

pytestmark = [pytest.mark.slow, pytest.mark.matrix, pytest.mark.timeout(LIMIT_S + 60)]


def check(case: Case) -> None:
    """Run a case and compare the verdict with its marks."""
    outcome, output = run_holdfast(replace(case, limit_s=LIMIT_S))
    assert outcome.right, f"{outcome}\n{output}"


@pytest.mark.parametrize("name", CASES)
def test_every_natural_fault_gets_its_verdict(name):
    check(CASES[name])


@pytest.mark.parametrize("name", FIXES)
def test_a_natural_fault_without_its_fault_ends_well(name, tmp_path):
    path = tmp_path / f"{name}.py"
    path.write_text(fixed_text(name))
    status, output = run_torchrun(replace(CASES[name], path=path), LIMIT_S)
    assert status == 0, output
