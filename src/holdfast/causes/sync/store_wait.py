"""SYNC013 store-wait."""

from __future__ import annotations

from holdfast.causes.remedies import WATCH, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

STORE_WAIT = Cause(
    code="SYNC013",
    name="store-wait",
    summary="A rank waits for others in the rendezvous store: in init_process_group, new_group or "
    "a store barrier.",
    what_happens="Group creation exchanges addresses through the job's TCPStore. A rank that "
    "arrives waits there for the keys of the others. If one never started, died before, or "
    "creates the groups in another order, it waits for the whole timeout of the group or store.",
    shows_before="Ranks that start minutes apart (image pulls, cold file systems), a world size "
    "larger than the number of started processes, setup work on one rank between process start "
    "and init_process_group.",
    shows_during="The trace file shows the entry into init_process_group or new_group and no "
    "collective after it; the stack ends in the store client. The missing ranks have no such "
    "entry yet: inspect those.",
    shows_after="`wait timeout after ...ms, keys: ...` or `n/m clients joined`. The last digits "
    "of a gloo key are the number of the rank whose address was missing.",
    known_misses="A rank that has not started has no trace file; only its absence is reported. "
    "Any NET cause may be behind the wait.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.STACKS,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="store-key-timeout",
            tier=Tier.NETWORK,
            confidence=0.4,
            sentence="a rank timed out waiting in the store",
            patterns=(r"wait timeout after (?P<ms>\d+)ms, keys: (?P<keys>\S+)",),
            examples=(
                (
                    "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: "
                    "/default_pg/0//cpu//0/0"
                ),
            ),
            weighed=True,
        ),
    ),
    alternatives=("master-unreachable", "rank-missing-collective"),
    echo_in_logs=True,
    may_recover=True,
    treatment=Treatment.SUSPECT,
    remedies=(
        by_hand("Check the missing rank: is it started, alive, and does it reach the same call?"),
        by_hand(
            "If a slow start is normal here, raise the timeout: "
            "`dist.init_process_group(backend, timeout=timedelta(minutes=60))`."
        ),
        WATCH,
    ),
    sources=("torch: torch/csrc/distributed/c10d/TCPStore.cpp", "pytorch/pytorch#88103"),
)
