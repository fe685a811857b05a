"""ENV015 clock-unsynchronized."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

CLOCK_UNSYNCHRONIZED = Cause(
    code="ENV015",
    name="clock-unsynchronized",
    summary="The clock of a host is wrong, or is not synchronized.",
    what_happens="Without NTP a clock drifts by seconds per week. Training does not need the "
    "time, but it orders the logs, traces and dumps of several hosts, validates certificates and "
    "cloud tokens, and is compared by file servers and `make`-like caches.",
    shows_before="`timedatectl` prints `System clock synchronized: no`; `chronyc tracking` prints "
    "`Not synchronised` or a large offset.",
    shows_during="Messages of one host seem earlier than their causes on another.",
    shows_after="Sorting logs by time blames the wrong rank; downloads fail with certificates "
    "`not yet valid` or `RequestTimeTooSkewed`.",
    known_misses="chrony without `rtcsync` synchronizes the clock without informing the kernel; "
    "the clock of a virtual machine may be set by its host. The offset between hosts is known "
    "only after comparing them.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="clock-wrong",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="the clock of the host is wrong",
            patterns=("certificate is not yet valid|RequestTimeTooSkewed",),
            examples=(
                (
                    "requests.exceptions.SSLError: [SSL: CERTIFICATE_VERIFY_FAILED] "
                    "certificate verify failed: certificate is not yet valid"
                ),
            ),
        ),
    ),
    remedies=(
        automatic(
            "Show which service synchronizes the clock, and how well.",
            "timedatectl; chronyc tracking",
        ),
        by_hand("Run chrony or systemd-timesyncd on every host.", "systemctl enable --now chronyd"),
    ),
    sources=("adjtimex(2)", "chrony: chronyc(1), tracking"),
)
