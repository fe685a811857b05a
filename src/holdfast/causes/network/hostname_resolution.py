"""NET004 hostname-resolution."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

HOSTNAME_RESOLUTION = Cause(
    code="NET004",
    name="hostname-resolution",
    summary="The name of the master or of a peer does not resolve, or resolves to an unusable "
    "address.",
    what_happens="MASTER_ADDR, the rendezvous endpoint and the names that c10d publishes (getfqdn "
    "of the host) must resolve on every host to a routable address. Missing DNS, a headless "
    "service that is not ready, or /etc/hosts lines that map the host's own name to 127.0.1.1 "
    "prevent this. torch retries a name that does not exist as if the fault were temporary.",
    shows_before="`getent hosts NAME` fails or differs between hosts; a host is named localhost.",
    shows_during="Ranks wait in the store client inside init_process_group; the log repeats "
    "warnings about address families and errno -2 or -3. The trace files contain only the wait in "
    "the store.",
    shows_after="`Name or service not known`, `Temporary failure in name resolution`, or a client "
    "socket that timed out connecting to a name. With c10d, `the hostname of the client socket "
    "cannot be retrieved` is a harmless warning.",
    known_misses="A name that resolves to the wrong machine is master-unreachable or "
    "network-interface-wrong. A slow DNS server causes the same wait, which then ends well.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="name-resolution",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="a host name does not resolve",
            patterns=(
                "Name or service not known|[Tt]emporary failure in name resolution",
                # gloo's "Unable to resolve hostname to a (local) address" only chooses another.
                r"[Cc]ould not resolve host|Unable to resolve hostname(?::| '| \"| [^t])",
                r"lookup \S{1,120} on \S{1,60}: no such host",
                ("Name does not resolve|nodename nor servname|No address associated with hostname"),
                "gai error|getaddrinfo|unable to resolve host: |can't resolve '",
            ),
            examples=(
                (
                    "[rank1]: torch.distributed.DistNetworkError: gai error: -2 - Name or "
                    "service not known"
                ),
                "socket.gaierror: [Errno -3] Temporary failure in name resolution",
                "nslookup: can't resolve 'fit-master-0'",
            ),
        ),
    ),
    remedies=(
        automatic("Show on each host what the name resolves to.", 'getent ahosts "$MASTER_ADDR"'),
        disruptive(
            "Use the address instead of the name; with the c10d rendezvous, also set the "
            "local address.",
            "holdfast run --rdzv-endpoint MASTER_ADDRESS:MASTER_PORT "
            "--local-addr LOCAL_ADDRESS SCRIPT",
        ),
    ),
    sources=("pytorch/pytorch#150532", "pytorch/pytorch#85300", "pytorch/pytorch#73656"),
)
