"""NET005 port-in-use."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

PORT_IN_USE = Cause(
    code="NET005",
    name="port-in-use",
    summary="The rendezvous or master port is already in use on the first host.",
    what_happens="Only one process can listen on a port. A leftover job, a second job of the same "
    "user with the default 29500, or a rank started twice makes the store's server fail. The other "
    "ranks may then connect to the other job's store, or wait for a store that never starts.",
    shows_before="`ss -ltnp` shows a listener on the port. A job script with a fixed port may run "
    "twice on one host.",
    shows_during="Rank 0 or the agent of the first host ends within a second; ranks on other "
    "hosts wait in the store.",
    shows_after="`EADDRINUSE` or `Address already in use` on the first host only, with the port "
    "number. The others end with a timeout half an hour later, and their messages are longer.",
    known_misses="If the other job's store answers, there is no error: ranks of two jobs join it, "
    "and the world size or the keys do not match.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="port-in-use",
            tier=Tier.NAMED,
            confidence=0.95,
            sentence="the rendezvous port is already in use",
            patterns=(
                "EADDRINUSE|[Aa]ddress already in use|another process is utilizing it",
                # Ascend's HCCL
                (
                    r"Failed to bind the IP port\.|port \d{1,5} have already been bound"
                    "|check the port status and whether the port is being used"
                ),
            ),
            examples=(
                (
                    "RuntimeError: The server socket has failed to listen. port: 29400, code: "
                    "-98, name: EADDRINUSE"
                ),
                (
                    "ConnectionError: Tried to launch distributed communication on port "
                    "`29511`, but another process is utilizing it."
                ),
                (
                    "[PID: 88] 2026-02-03-04:05:06.1 Communication_Error_Bind_IP_Port(EI0019): "
                    "Failed to enable listening for the host network adapter socket.Reason: The IP "
                    "address 10.0.0.2 and port 60000 have already been bound."
                ),
                (
                    "[rank0]: EJ0003: [PID: 88] Failed to bind the IP port. Reason: The IP address "
                    "and port have been bound already."
                ),
            ),
        ),
    ),
    remedies=(
        automatic("Find the process that listens on the port.", "ss -ltnp 'sport = :MASTER_PORT'"),
        disruptive(
            "On one host let the launcher choose a free port; on several give each job a "
            "different port.",
            "holdfast run --standalone SCRIPT",
        ),
        by_hand(
            "End the leftover process by its pid, after checking that it is yours and not needed."
        ),
    ),
    sources=(
        "torch: torch/csrc/distributed/c10d/socket.cpp",
        "CANN: HCCL user guide, EI0019 and EJ0003",
    ),
)
