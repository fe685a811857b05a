"""NET006 master-unreachable."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

MASTER_UNREACHABLE = Cause(
    code="NET006",
    name="master-unreachable",
    summary="Ranks cannot reach the rendezvous store: wrong address, host not up, or store not "
    "running.",
    what_happens="All ranks first connect to one store at MASTER_ADDR:MASTER_PORT or at the "
    "rendezvous endpoint. If the address is wrong, the first host is late, or rank 0 never "
    "started, the clients retry until the timeout, even after permanent errors such as `no route "
    "to host`.",
    shows_before="An endpoint that no host of the job owns, 127.0.0.1 in a job with several "
    "hosts, a script that sets MASTER_ADDR or MASTER_PORT although a launcher starts it, or world "
    "sizes and node ranks that do not match between hosts.",
    shows_during="Clients wait in init_process_group; the server waits for clients. Their trace "
    "files end with the entry into the store and contain no collective.",
    shows_after="`The client socket has timed out after ...ms while trying to connect to`, `n/m "
    "clients joined` on the server, a RendezvousTimeoutError without text. The address in torch's "
    "message can be garbage; trust the configured one.",
    known_misses="A blocked port (firewall-blocked-ports), an unresolved name "
    "(hostname-resolution) and a late first host look the same until a connection is tried from "
    "outside the job.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="rendezvous-timeout",
            tier=Tier.NETWORK,
            confidence=0.6,
            sentence="the nodes did not complete the rendezvous",
            patterns=(
                "RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError",
                (
                    "[Rr]endezvous.{0,30}timed out|[Tt]imed out initializing process group in "
                    "store based"
                ),
            ),
            examples=(
                (
                    "RuntimeError: Timed out initializing process group in store based barrier "
                    "on rank: 2, for key: store_based_barrier_key:1"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="store-unreachable",
            tier=Tier.NETWORK,
            confidence=0.75,
            sentence="the rendezvous store cannot be reached",
            patterns=(
                (
                    r"timed out after (?P<ms>\d+) ?m?s while .{0,20}to \(?[^,:)\s]+[,:] "
                    r"?(?P<port>\d+)"
                ),
                r"connect\(\) timed out\. Original timeout was (?P<ms>\d+)",
                "client socket has failed to connect to|TCP client failed to connect",
                "DistNetworkError: .{0,40}[Ff]ailed to connect",
                "[Cc]onnection to the C10d store has failed",
            ),
            examples=(
                (
                    "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while "
                    "trying to connect to 10.0.0.1:1234."
                ),
                "RuntimeError: connect() timed out. Original timeout was 60000 ms.",
            ),
            weighed=True,
        ),
        LogSignal(
            name="clients-joined",
            tier=Tier.NETWORK,
            confidence=0.6,
            sentence="ranks are missing at the rendezvous",
            patterns=(r"(?P<joined>\d+)/(?P<wanted>\d+) clients joined",),
            examples=(
                (
                    "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for "
                    "clients. 1/2 clients joined."
                ),
            ),
            weighed=True,
        ),
    ),
    log_examples=(
        (
            '  File "/v/torch/distributed/launcher/api.py", line 11, in launch_agent\n'
            "    result = agent.run()\n"
            "torch.distributed.DistStoreError: Socket Timeout"
        ),
    ),
    alternatives=("firewall-blocked-ports", "hostname-resolution"),
    may_recover=True,
    remedies=(
        by_hand(
            "Leave MASTER_ADDR and MASTER_PORT as the launcher sets them, and pass no address in "
            "init_method: `dist.init_process_group(backend)`."
        ),
        automatic(
            "From the host that cannot connect, try the endpoint.",
            'nc -vz "$MASTER_ADDR" "$MASTER_PORT"',
        ),
        disruptive(
            "Use the same endpoint, owned by the first host, and the same number of nodes on "
            "all hosts.",
            "holdfast run --nnodes 2 --rdzv-backend c10d "
            "--rdzv-endpoint MASTER_HOST:MASTER_PORT SCRIPT",
        ),
    ),
    sources=("pytorch/pytorch#69197", "pytorch/pytorch#79388"),
)
