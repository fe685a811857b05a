"""PERF003 watchdog-timeout-straggler."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

WATCHDOG_TIMEOUT_STRAGGLER = Cause(
    code="PERF003",
    name="watchdog-timeout-straggler",
    summary="A rank was healthy but too slow (slow GPU or host, a long stall), and the others "
    "timed out.",
    what_happens="The slow rank would have arrived. A garbage collection, an emptied page cache, "
    "a swapping host, a throttled GPU or a busy file system delayed it by more than the timeout "
    "of the collective, and the watchdog of the punctual ranks ended the job.",
    shows_before="A timeout that was shortened to find hangs quickly; step times with a long tail.",
    shows_during="The missing rank computes or moves data, with a changing stack; its delay grows.",
    shows_after="Watchdog timeouts on the punctual ranks; the late rank's log continues after "
    "them, or its trace file shows it entering the very collective in which the others timed out. "
    "Before that, throughput drops.",
    known_misses="If the late rank was killed before it could arrive, a delay and an absence "
    "leave the same log: only its trace file, or its log's timestamps, distinguish them.",
    evidence_sources=(EvidenceSource.LOG,),
    log_examples=(
        (
            "RuntimeError: Timed out receiving the shared seed from the distribtued store "
            "on Rank 2. (world_size=5, timeout=1800)"
        ),
    ),
    alternatives=("rank-missing-collective", "network-fabric-fault"),
    may_be_consequence=True,
    echo_in_logs=True,
    treatment=Treatment.SLOW_HOST,
    remedies=(
        by_hand(
            "Set a timeout longer than the longest healthy stall: "
            "`dist.init_process_group(backend, timeout=timedelta(minutes=30))`."
        ),
        by_hand(
            "Find the reason for the stall on that host: throttling, swap, storage, other jobs."
        ),
        DRAIN,
    ),
    sources=("bigscience-workshop/bigscience: chronicles of tr11", "pytorch/torchtitan#2899"),
)
