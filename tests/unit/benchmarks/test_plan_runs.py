"""Prediction errors for published runs not used for fitting are as documented."""

from statistics import median

import msgspec
import pytest

from benchmarks.plan_rows import unexplained
from benchmarks.plan_runs import REASONS, RUNS, Run, rows


@pytest.fixture(scope="module")
def run_rows():
    runs = msgspec.json.decode(RUNS.read_bytes(), type=list[Run])
    return [row for run in runs for row in rows(run)]


@pytest.mark.parametrize(
    ("kind", "percent"),
    [
        ("LoRA: memory", 6),
        ("QLoRA: memory", 15),
        ("LoRA: speed", 15),
        ("experts: speed", 28),
        ("one GPU: speed", 4),
    ],
)
def test_median_error(run_rows, kind, percent):
    assert median(abs(row.error_percent) for row in run_rows if row.kind == kind) < percent


def test_large_errors_have_a_reason(run_rows):
    assert unexplained(run_rows, REASONS) == []
    assert set(REASONS) == {row.id for row in run_rows if row.far}


def test_each_run_has_its_source():
    runs = msgspec.json.decode(RUNS.read_bytes(), type=list[Run])
    assert all(run.source for run in runs)
    assert len({run.id for run in runs}) == len(runs)
