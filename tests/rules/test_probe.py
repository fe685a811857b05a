"""From what ranks of a probe failed with to findings. The words of torch are those of 2.13 on gloo, heard in tests."""

from __future__ import annotations

import pytest

from holdfast.rules.probe import judge
from holdfast.runtime.probe import Failure

REFUSED = "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused, remote=[{}]:54191$1"
SLOW = "it did not end within 8 s"


def failed(why, stage="group", rank=1, missing=()):
    return Failure(rank=rank, host=f"node{rank}", stage=stage, processes=2, why=why, missing=missing)


@pytest.mark.parametrize(
    ("failure", "cause", "words"),
    [
        (failed("not all had come after 20 s", "store", 0, (1,)), "store-wait", "rank 1 reached no further"),
        (failed("... port: 29500, code: -98, name: EADDRINUSE", "store"), "port-in-use", "10.0.0.1:29500"),
        (failed("ifa != nullptr. Unable to find address for: eth9"), "network-interface-wrong", "eth9"),
        (failed(REFUSED.format("127.0.1.1")), "network-interface-wrong", "127.0.1.1"),
        (failed(REFUSED.format("10.0.0.2")), "firewall-blocked-ports", "10.0.0.2, port 54191"),
        (failed("1 of 2 sums are wrong: element 0 is 1.0, and should be 3.0", "all-reduce of 4 B"),
         "collective-result-wrong", "element 0"),
        (failed("ImportError: libcudart.so.12", "import"), "python-exception-on-one-rank", "libcudart"),
        (failed("died of signal 11", "step"), "segfault-in-worker", "signal 11"),
        (failed("died of signal 9", "step"), "rank-killed", "signal 9"),
        (failed(SLOW), "firewall-blocked-ports", "cannot open connections"),
        (failed("Timed out waiting 8000ms for recv operation to complete", "all-reduce of 64 KiB"),
         "network-fabric-fault", "MTU"),
        (failed(SLOW, "all-reduce of 1 KiB"), "network-fabric-fault", "all-reduce of 1 KiB"),
        (failed(SLOW, "barrier"), "network-fabric-fault", "barrier"),
        (failed("NCCL error in: ncclSystemError", "all-reduce of 4 B"), "network-fabric-fault", "ncclSystemError"),
        (failed("no backend called xyz", "group"), "python-exception-on-one-rank", "xyz"),
    ],
)  # fmt: skip
def test_a_failure_is_of_one_cause(failure, cause, words):
    (claim,) = judge([failure], "10.0.0.1:29500")
    assert claim.cause == cause
    assert words in claim.message
    assert claim.evidence[0].host == failure.host


def test_who_merely_waited_is_evidence_and_no_finding():
    found = judge([failed(SLOW, rank=0), failed("ifa != nullptr. Unable to find address for: eth9")], "a:1")
    assert [(claim.cause, claim.subject.rank) for claim in found] == [("network-interface-wrong", 1)]
    assert [fact.rank for fact in found[0].evidence] == [0, 1]


def test_ranks_that_all_wait_are_one_finding():
    (claim,) = judge([failed(SLOW, rank=0), failed(SLOW, rank=1)], "a:1")
    assert claim.message.startswith("ranks 0-1 reached the store")


def test_nothing_failed_nothing_is_found():
    assert judge([], "a:1") == ()
