"""NET011 slow-link."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

SLOW_LINK = Cause(
    code="NET011",
    name="slow-link",
    summary="One host, or one pair of hosts, has far less bandwidth than the others.",
    what_happens="A collective is as slow as its slowest link, and a ring over n hosts passes "
    "through each of them. A port that came up at a lower rate, a bad cable, a duplex mismatch, a "
    "busy neighbor or a longer path slows down all ranks.",
    shows_before="`holdfast check` with several hosts measures every pair, one pair per host at a "
    "time, and compares them with the median.",
    shows_during="All ranks wait a little in every collective, and no rank stands out. If several "
    "groups alike span the hosts (data parallelism with tensor parallelism inside each host), the "
    "watcher names the group, or the host, whose collectives are slow although all ranks are in.",
    shows_after="Nothing but the step time.",
    known_misses="The measurement uses one TCP connection from Python: above about 10 Gbit/s that "
    "is the limit, and faster links look the same. Another job on the network looks like a slow "
    "link. InfiniBand is not measured this way. During a job, one group over all hosts has "
    "no other to be compared with, and NCCL does not report when a collective completes.",
    evidence_sources=(EvidenceSource.HOST, EvidenceSource.TRACE),
    remedies=(
        automatic(
            "Compare the port's link rate and errors with those of another host.",
            "ethtool INTERFACE | grep -i speed; ip -s link show INTERFACE",
        ),
        disruptive("Measure the pair with several connections.", "iperf3 -c OTHER_HOST -P 8"),
        DRAIN,
    ),
    sources=("deepspeedai/DeepSpeed#1617", "NVIDIA/nccl#349"),
)
