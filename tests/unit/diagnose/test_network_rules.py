"""Failed connections: a firewall or the interface first; the fabric with faults of ports only."""

from __future__ import annotations

import pytest

from tests.unit.diagnose.test_log_rules import verdict

REFUSED = (
    "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to {}<4711> failed : Connection refused\n"
)
NO_ROUTE = (
    "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to {}<4711> failed : No route to host\n"
)
COMPLETION = (
    "n2:7:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.3<4711> with status=12 opcode=0 "
    "len=0 vendor err 129 (Recv)\n"
)
PORT_ERROR = "n3:8:9 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
EFA = (
    "n1:7:9 [0] NCCL WARN NET/OFI Request 0x7f00 completed with error. RC: 103. Error: {} My EFA addr: "
    "fi_addr_efa://[fe80::1]:0:9\n"
)
UNPLUGGED = "n3: mlx5_core 0000:17:00.0: Port module event[error]: module 0, Cable unplugged\n"


def cause_of(log: str) -> str | None:
    root = verdict(log).root
    return root.cause if root is not None else None


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (REFUSED.format("10.0.0.2"), "firewall-blocked-ports"),
        (NO_ROUTE.format("10.0.0.2"), "firewall-blocked-ports"),
        (REFUSED.format("127.0.1.1"), "network-interface-wrong"),
        (NO_ROUTE.format("172.17.0.4"), "network-interface-wrong"),
        (COMPLETION, "ib-error"),
        (EFA.format("5 (Invalid address handle on remote)"), "ib-error"),
        (
            EFA.format("4124 (Unresponsive receiver (connection previously established))"),
            "peer-lost",
        ),
        (REFUSED.format("10.0.0.2") + PORT_ERROR, "network-fabric-fault"),
    ],
)
def test_the_cause_of_a_failed_connection(log: str, cause: str) -> None:
    assert cause_of(log) == cause


@pytest.mark.parametrize(
    ("event", "cause"), [(PORT_ERROR, "network-fabric-fault"), (UNPLUGGED, "ib-port-degraded")]
)
@pytest.mark.parametrize("first", [True, False])
def test_the_host_with_the_port_events_is_to_blame(event: str, cause: str, *, first: bool) -> None:
    root = verdict(event + COMPLETION if first else COMPLETION + event).root
    assert root is not None
    assert (root.cause, root.subject.host) == (cause, "n3")


def test_the_summary_of_nccl_is_no_cause_if_a_peer_is_lost() -> None:
    log = (
        "n1:5:9 [1] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<5>\n"
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1269, internal error, NCCL version 2\n"
        "ncclInternalError: Internal check failed.\n"
    )
    assert cause_of(log) == "peer-lost"
    assert cause_of("\n".join(log.splitlines()[1:]) + "\n") == "comm-config-bad"


def test_a_connection_that_is_refused_after_steps_is_a_lost_peer() -> None:
    refused = "n1:5:9 [0] NCCL WARN socketStartConnect: Connect to 10.0.0.2<4711> failed : Connection refused\n"
    steps = "".join(f"step {number} loss 2.0\n" for number in range(5))
    assert verdict(steps + refused).root.cause == "peer-lost"
    assert verdict(refused).root.cause == "firewall-blocked-ports"
