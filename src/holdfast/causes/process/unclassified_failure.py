"""PROC014 unclassified-failure."""

from __future__ import annotations

from holdfast.causes.remedies import RESTART, WATCH, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

UNCLASSIFIED_FAILURE = Cause(
    code="PROC014",
    name="unclassified-failure",
    summary="The job failed, and no line of the logs belongs to a cause that holdfast knows.",
    what_happens="A rank or a launcher reports a failure, or the log ends with an error that no "
    "rule knows. The finding cites what is evidence nevertheless: the rank that failed first, and "
    "the lines that are new before its end, compared with what the same job printed before.",
    shows_before="Nothing.",
    shows_during="Nothing.",
    shows_after="Lines of a kind that the log did not contain before, on one rank or before the "
    "first report of the failure.",
    known_misses="The first and last kilobytes of up to 512 logs are compared; a reason in the "
    "middle of a long log is not found. A harmless line that is printed once, before the end, is "
    "cited too.",
    log_examples=("step 40: loss 2.1\n[rank2]: flux regulator: fatal error: no reply",),
    alternatives=("exit-nonzero", "python-exception-on-one-rank"),
    may_be_consequence=True,
    evidence_sources=(EvidenceSource.LOG,),
    remedies=(
        by_hand("Read the cited lines, and the end of the log of the rank that failed first."),
        by_hand("Search for the cited line in the issues of the library that printed it."),
        WATCH,
        RESTART,
    ),
    sources=("He et al. 2017: Drain, an online log parsing approach with fixed depth tree",),
)
