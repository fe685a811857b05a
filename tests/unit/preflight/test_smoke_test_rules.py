"""Findings from failures of smoke-test ranks. Error texts are those of torch 2.13 on gloo, recorded in tests."""

from __future__ import annotations

import pytest

from holdfast.preflight.smoke_test_rules import judge
from holdfast.preflight.torch_smoke_test import SmokeTestFailure

REFUSED = "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused, remote=[{}]:54191$1"
SLOW = "it did not end within 8 s"


def failed(why, stage="group", rank=1, missing=()):
    return SmokeTestFailure(
        rank=rank, host=f"node{rank}", stage=stage, processes=2, why=why, missing=missing
    )


@pytest.mark.parametrize(
    ("failure", "cause", "words"),
    [
        (
            failed("not all ranks arrived within 20 s", "store", 0, (1,)),
            "store-wait",
            "rank 1 did not reach store",
        ),
        (
            failed("... port: 29500, code: -98, name: EADDRINUSE", "store"),
            "port-in-use",
            "10.0.0.1:29500",
        ),
        (
            failed("ifa != nullptr. Unable to find address for: eth9"),
            "network-interface-wrong",
            "eth9",
        ),
        (failed(REFUSED.format("127.0.1.1")), "network-interface-wrong", "127.0.1.1"),
        (failed(REFUSED.format("10.0.0.2")), "firewall-blocked-ports", "10.0.0.2, port 54191"),
        (
            failed("1 of 2 sums are wrong: element 0 is 1.0 instead of 3.0", "all-reduce of 4 B"),
            "collective-result-wrong",
            "element 0",
        ),
        (
            failed("ImportError: libcudart.so.12", "import"),
            "python-exception-on-one-rank",
            "libcudart",
        ),
        (failed("died of signal 11", "step"), "segfault-in-worker", "signal 11"),
        (failed("died of signal 9", "step"), "rank-killed", "signal 9"),
        (failed(SLOW), "firewall-blocked-ports", "cannot connect to each other"),
        (
            failed(
                "Timed out waiting 8000ms for recv operation to complete", "all-reduce of 64 KiB"
            ),
            "network-fabric-fault",
            "MTU",
        ),
        (failed(SLOW, "all-reduce of 1 KiB"), "network-fabric-fault", "all-reduce of 1 KiB"),
        (failed(SLOW, "barrier"), "network-fabric-fault", "barrier"),
        (
            failed("NCCL error in: ncclSystemError", "all-reduce of 4 B"),
            "network-fabric-fault",
            "ncclSystemError",
        ),
        (failed("no backend called xyz", "group"), "python-exception-on-one-rank", "xyz"),
    ],
)
def test_failures_and_their_causes(failure, cause, words):
    (finding,) = judge([failure], "10.0.0.1:29500")
    assert finding.cause == cause
    assert words in finding.message
    assert finding.evidence[0].host == failure.host


def test_timeouts_of_other_ranks_are_evidence():
    findings = judge(
        [failed(SLOW, rank=0), failed("ifa != nullptr. Unable to find address for: eth9")], "a:1"
    )
    assert [(finding.cause, finding.subject.rank) for finding in findings] == [
        ("network-interface-wrong", 1)
    ]
    assert [fact.rank for fact in findings[0].evidence] == [0, 1]


def test_timeouts_of_all_ranks_are_one_finding():
    (finding,) = judge([failed(SLOW, rank=0), failed(SLOW, rank=1)], "a:1")
    assert finding.message.startswith("ranks 0-1 reached the store")


def test_no_failures_no_findings():
    assert judge([], "a:1") == ()
