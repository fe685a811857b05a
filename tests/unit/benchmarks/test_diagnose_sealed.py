"""What the peers of the sealed benchmark name in a log."""

from __future__ import annotations

import pytest

from benchmarks.diagnose_sealed import rank_of_failure_table, rank_of_first_error

TABLE = """
Root Cause (first observed failure):
[0]:
  time      : 2026-02-03_04:05:06
  host      : node1
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 82)
"""


def test_the_failure_table_names_a_rank() -> None:
    assert rank_of_failure_table(f"step 1\n{TABLE}") == 3
    assert rank_of_failure_table("step 1\n") is None


@pytest.mark.parametrize(
    ("log", "rank"),
    [
        ("step 1\n[rank2]: ValueError: no\n[rank0]: RuntimeError: no", 2),
        ("[default1]: Segmentation fault", 1),
        ("ValueError: no", None),
        ("step 1", None),
    ],
)
def test_the_first_error_names_the_rank_of_its_line(log: str, rank: int | None) -> None:
    assert rank_of_first_error(log) == rank
