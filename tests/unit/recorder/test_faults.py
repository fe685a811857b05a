"""Injected faults: their grammar, and the diagnosis of each fault in a real job."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.recorder import faults
from holdfast.recorder.faults import Fault
from tests.process.launched import Launched

JOB = Path(__file__).parent / "faulty_job.py"

#: Accepted causes of each fault on rank 1 of 3 in the middle of the job; None: no failure is diagnosed.
EXPECTED_CAUSES = {
    "hang": {"rank-missing-collective"},
    "exit": {"exit-nonzero"},
    "sigkill": {"rank-killed"},
    "sigstop": {"rank-stopped"},
    "exception": {"python-exception-on-one-rank"},
    "slow": {None},
    "skip-collective": {"rank-skips-collective"},
    "wrong-shape": {"mismatched-shape"},
    "wrong-order": {"mismatched-operation"},
    "early-end": {"rank-exits-early"},
    "out-of-memory": {"oom-on-one-rank-then-timeout"},
    "corrupt": {None},  # numerical checks are not implemented yet
    "device-oom": {"oom-on-one-rank-then-timeout"},
    # An exception on hosts without a memory limit.
    "fill-memory": {"host-oom-killed", "python-exception-on-one-rank"},
    # The job has no loader, and the fault raises an error.
    "kill-loader": {"python-exception-on-one-rank"},
    "slow-disk": {None},
    "clock-jump": {None},
}


def test_fault_grammar() -> None:
    assert faults.parse_fault(
        "hang@rank=2,step=30;slow@rank=1|3,collective=4,seconds=.5,generation=all"
    ) == (
        Fault(kind="hang", ranks=(2,), step=30),
        Fault(kind="slow", ranks=(1, 3), collective=4, seconds=0.5, generation=None),
    )
    assert faults.parse_fault("exit@phase=checkpoint,visit=2") == (
        Fault(kind="exit", ranks=None, phase="checkpoint", visit=2),
    )
    assert faults.parse_fault("exit@step=3,code=9") == (
        Fault(kind="exit", ranks=None, step=3, code=9),
    )
    assert faults.parse_fault("") == ()


@pytest.mark.parametrize(
    ("text", "error", "expected"),
    [
        ("hnag@rank=2,step=3", UnknownName, "did you mean hang"),
        ("hang@rnk=2,step=3", UnknownName, "did you mean rank"),
        ("hang@rank=2", InvalidValue, "exactly one of step="),
        ("hang@rank=2,step=3,collective=4", InvalidValue, "exactly one of step="),
        ("hang@rank=two,step=3", InvalidValue, "hang@rank=2,step=30"),
        ("hang@rank=,step=3", InvalidValue, "no value"),
        ("hang", InvalidValue, "exactly one of step="),
    ],
)
def test_an_invalid_fault_raises_one_sentence(
    text: str, error: type[Exception], expected: str
) -> None:
    with pytest.raises(error, match=expected):
        faults.parse_fault(text)


def test_every_fault_has_expected_causes() -> None:
    assert EXPECTED_CAUSES.keys() == faults.FAULT_KINDS.keys()


def inject_fault(kind: str, folder: Path) -> None:
    """Run the job with one fault and compare the verdict with the table."""
    options = ["--standalone", "--nproc-per-node", 3, "--act-after", "5s"]
    options += ["--inject", f"{kind}@rank=1,step=20", "--json-report", "report.json"]
    job = Launched(folder, *options, JOB)
    status = job.end()
    root = job.json("report.json")["verdict"]["root"]
    assert (root["cause"] if root else None) in EXPECTED_CAUSES[kind], job.output
    if root is None:
        assert status == 0, job.output
    else:
        assert root["subject"]["rank"] == 1, job.output
        assert status != 0


@pytest.mark.slow
def test_a_skipped_collective_is_detected(tmp_path: Path) -> None:
    inject_fault("skip-collective", tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", faults.FAULT_KINDS)
def test_every_fault_is_detected(kind: str, tmp_path: Path) -> None:
    inject_fault(kind, tmp_path)
