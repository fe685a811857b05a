"""NET014 ib-port-degraded."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
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
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="adapter-port",
            tier=Tier.NETWORK,
            confidence=0.85,
            sentence="the adapter of this host reports a fault of its port",
            patterns=(
                (
                    "Port module event.{0,60}(?:[Uu]nplugged|[Ee]rror)|mlx5_core "
                    ".{0,80}(?:health compromised|poll_health|firmware fatal)"
                ),
                (
                    r"infiniband \S{1,30}: port \d+ (?:down|state change: "
                    "down)|IB_EVENT_PORT_ERR"
                ),
            ),
            examples=(
                (
                    "[812.5] mlx5_core 0000:17:00.0: Port module event[error]: module "
                    "0, Cable error, Bus stuck (I2C or data shorted)"
                ),
                ("[99.1] mlx5_core 0000:17:00.0: poll_health:812:(pid 0): Fatal error 1 detected"),
            ),
            counter_examples=(
                ("[2.1] mlx5_core 0000:17:00.0: Port module event: module 0, Cable plugged"),
            ),
            weighed=True,
        ),
        LogSignal(
            name="adapter-link-down",
            tier=Tier.NETWORK,
            confidence=0.8,
            sentence="a port of this host's adapter lost its link",
            patterns=(
                (
                    r"(?:mlx5_core|bnxt_en|ice|irdma|mlx4_en|ionic|hns3) [\da-f:.]{7,14}:? ?"
                    r"\S{0,20}:? (?:NIC )?Link (?:is )?[Dd]own"
                ),
            ),
            examples=(
                (
                    "Jun 11 04:11:01 n21 kernel: mlx5_core 0000:9a:00.0 ibp154s0: Link down\n"
                    "Jun 11 04:11:31 n21 train[5510]: RuntimeError: NCCL error: remote process "
                    "exited or there was a network error"
                ),
            ),
            counter_examples=(
                (
                    "[2.51] mlx5_core 0000:9a:00.0 ens3: Link down\n"
                    "[3.51] mlx5_core 0000:9a:00.0 ens3: Link up"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="adapter-counts-differ",
            tier=Tier.NAMED,
            confidence=0.65,
            sentence="hosts have different numbers of network adapters",
            patterns=("Detected mixed local (?:Net|CollNet) device counts across ranks",),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN Detected mixed local Net device counts across ranks "
                    "(min 7, max 8). Set NCCL_IGNORE_NET_MISMATCH=1 to continue."
                ),
            ),
        ),
    ),
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
