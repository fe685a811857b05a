"""A fault that training survived, and lines about errors after its end, are no failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnose.logs.file_names import rank_in_name
from tests.unit.diagnose.test_log_rules import HEALTHY, raises, root_of

STEPS = tuple(f"step {number}/900 loss 2.{number}\n" for number in range(1, 31))
END = "Training completed after 3 epochs\n"
NOISE = (
    "NVRM: Xid (PCI:0000:4a:00): 13, pid=71211, name=python, Graphics SM Warp Exception\n",
    "sample> Out of memory: Killed process 3121 (java)\n",
    "sample> Segmentation fault (core dumped) is what the shell prints\n",
    "slurmstepd: error: *** JOB 88 ON n1 CANCELLED AT 2025-02-10T02:38:12 DUE TO PREEMPTION ***\n",
    "WARNING: There was an error initializing an OpenFabrics device.\n",
    "reducer.cpp:1298] Grad strides do not match. This is not an error, but slow.\n",
    raises(0, "FileNotFoundError: [Errno 2] No such file or directory: 'a.yaml'"),
    (
        "failed (exitcode: 1) local_rank: 0 (pid: 5011) of binary: python\n"
        "Root Cause (first observed failure):\n"
        "  rank      : 0 (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 5011)\n"
    ),
)


@given(
    st.lists(st.tuples(st.integers(0, len(STEPS) - 3), st.sampled_from(NOISE)), max_size=4),
    st.sampled_from(("", END)),
)
def test_noise_before_later_steps_is_no_failure(noise: list[tuple[int, str]], end: str) -> None:
    lines = list(STEPS)
    for at, text in sorted(noise, reverse=True):
        lines.insert(at, text)
    assert root_of("".join(lines) + end)[0] == HEALTHY


@pytest.mark.parametrize(
    "last",
    [
        "(raylet) agent_manager.cc:78: The raylet cannot reach the dashboard agent\n",
        "Final top-1 error 23.41\n",
    ],
)
def test_an_error_after_the_end_of_training_is_no_failure(last: str) -> None:
    assert root_of("".join(STEPS) + END + last)[0] == HEALTHY


def test_a_date_in_the_name_of_a_log_is_no_rank() -> None:
    assert rank_in_name("20240302_180002.log") is None
    assert rank_in_name("job_4711_3.out") == 3
