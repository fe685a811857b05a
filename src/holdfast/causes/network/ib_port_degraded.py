"""NET014 ib-port-degraded."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand
from holdfast.core.findings import Cause
from holdfast.core.treatments import Treatment

IB_PORT_DEGRADED = Cause(
    code="NET014",
    name="ib-port-degraded",
    summary="A port of an InfiniBand or RoCE adapter is down, flaps, or is slower than it should "
    "be.",
    what_happens="The link is not up, runs with fewer lanes or at a lower rate, has errors that "
    "are retransmitted, or the adapter itself lost PCIe lanes. NCCL excludes a port that is not "
    "ACTIVE at job start, and reports that only with NCCL_DEBUG=INFO; a port that goes down later "
    "ends the job.",
    shows_before="State and rate in `ibstat` or /sys/class/infiniband, counters (symbol_error, "
    "link_downed), `Link DOWN` in the kernel log; INIT instead of ACTIVE if no subnet manager "
    "runs.",
    shows_during="All collectives between hosts are slow, by the share of the missing rail.",
    shows_after="`NET/IB : Got completion ... with error 12` or `port error` on this host if the "
    "port went down during the job, otherwise nothing.",
    known_misses="Counters count from the time the driver was loaded: an old fault that was "
    "repaired still shows. Ports of a management network are slower by design: name the others in "
    "NCCL_IB_HCA.",
    treatment=Treatment.SUSPECT,
    remedies=(
        automatic(
            "List all ports and their counters.", "ibstat; rdma link show; ethtool -S INTERFACE"
        ),
        by_hand("Reseat or replace the cable; check the switch's side of the link."),
        DRAIN,
    ),
    sources=(
        "Linux: Documentation/ABI/stable/sysfs-class-infiniband",
        "NVIDIA/nccl: src/transport/net_ib",
    ),
)
