"""NET013 clocks-differ."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CLOCKS_DIFFER = Cause(
    code="NET013",
    name="clocks-differ",
    summary="The clocks of two hosts of one job show different times.",
    what_happens="Training itself does not compare wall clocks across hosts. What people and "
    "tools combine afterwards depends on them: the order of events in logs of several ranks, "
    "traces, file times on a shared file system, tokens and certificates that are not valid yet.",
    shows_before="`holdfast check` with several hosts exchanges the time ten times and uses the "
    "fastest exchange.",
    shows_during="Log lines of one event are minutes apart; make and caches on shared file "
    "systems rebuild or keep stale files.",
    shows_after="An effect is logged before its cause. `holdfast diagnose` cannot determine which "
    "rank was first.",
    known_misses="Which of two clocks is right is unknown; with three or more hosts the majority "
    "is used. The error is at most half a round trip, more on a loaded host.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic("Check whether the clock is synchronized.", "timedatectl; chronyc tracking"),
        by_hand("Start the time service, on every host.", "systemctl enable --now chronyd"),
    ),
    sources=("RFC 5905",),
)
