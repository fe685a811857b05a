"""SYNC001 collective-mismatch."""

from __future__ import annotations

from holdfast.causes.remedies import COMPARE_SEQUENCES, RESTART, SAME_LINE
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

COLLECTIVE_MISMATCH = Cause(
    code="SYNC001",
    name="collective-mismatch",
    summary="Ranks called different collectives, with different sizes or dtypes, or in a "
    "different order.",
    what_happens="Members of a group must issue the same collectives in the same order with "
    "matching arguments. The backend does not check this; it moves bytes. Depending on the calls "
    "the job hangs, crashes in native code, or gets wrong values without an error. The specific "
    "forms are mismatched-operation, mismatched-shape and mismatched-dtype; this cause covers the "
    "rest, and logs that do not show which form it is.",
    shows_before="Collectives under conditions on the rank or on the rank's own data; a broadcast "
    "with different src; buffers sized by local data.",
    shows_during="At one (group, sequence) the trace files hold different signatures. The "
    "minority is named; for equal numbers on both sides the verdict reports a tie.",
    shows_after="NCCL: watchdog timeouts with different OpType or NumelIn at the same SeqNum, or "
    "a crash. gloo: `preamble.length` and an abort, or a timeout. With DETAIL: `Detected mismatch "
    "between collectives on ranks`.",
    known_misses="The reduce operation (SUM against MAX) and the root of a broadcast are not "
    "compared. Sizes are not compared for calls that may differ in size (gather, scatter, "
    "all_to_all). In a tie the correct side may be named.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.DUMP,
        EvidenceSource.STACKS,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="mismatch-said",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="ranks called different collectives",
            patterns=(
                r"\[(?P<rank>\d+)\]: params\[\d+\] in this process .{0,80}appears not to match",
                r"DDP expects same model across all ranks(?:, but Rank (?P<rank>\d{1,6}) has)?",
                (
                    "Detected mismatch between collectives on ranks|[Cc]ollectives differ in "
                    "the following aspects"
                ),
                (
                    r"op\.preamble\.length|[Dd]esync(?:hronization)? (?:report|detected)|do not "
                    r"match across ranks"
                ),
            ),
            examples=(
                (
                    "[rank2]: RuntimeError: [2]: params[0] in this process with sizes [4, 4] "
                    "appears not to match sizes of the same param in process 0."
                ),
            ),
            precedence=1,
        ),
        LogSignal(
            name="nccl-truncated",
            tier=Tier.NAMED,
            confidence=0.7,
            sentence="ranks sent different sizes",
            patterns=(
                "Message truncated|message truncated|[Mm]ismatched? (?:collective|size)",
                (
                    r"size mismatch between ranks|Mismatched collective detected.{0,80}rank "
                    r"(?P<rank>\d+)"
                ),
            ),
            examples=(
                "n1:5:9 [0] NCCL WARN Message truncated : received 4096 bytes instead of 2048",
            ),
        ),
        LogSignal(
            name="hccl-inconsistent",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="ranks gave a collective different arguments",
            patterns=(
                ("EI0005: |EI0014: |arguments for collective communication are inconsistent"),
            ),
            examples=(
                (
                    "EI0005: [PID: 811] The arguments for collective communication are "
                    "inconsistent between ranks: tag allreduce, parameter count"
                ),
            ),
        ),
    ),
    alternatives=("rank-missing-collective", "segfault-in-worker"),
    treatment=Treatment.CODE,
    remedies=(SAME_LINE, COMPARE_SEQUENCES, RESTART),
    sources=(
        "torch: ProcessGroupWrapper",
        "MUST (Hilbrich et al., SC'13)",
        "pytorch/pytorch#137006",
    ),
)
