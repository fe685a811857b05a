"""Peers rendezvous, probe each other and share one result; missing peers do not block them."""

import asyncio
import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from holdfast.core.findings import Unknown
from holdfast.preflight.rendezvous import (
    ConnectAttempt,
    ConnectOutcome,
    EndpointLookup,
    IncompatiblePeer,
    LinkMeasurement,
    ProbeResult,
    ProtocolMismatch,
)
from holdfast.preflight.rendezvous.connect_attempts import try_connect
from holdfast.preflight.rendezvous.frames import accept_handshake, derive_key, start_handshake
from holdfast.preflight.rendezvous.messages import (
    ClockReply,
    Join,
    LinkReply,
    ProbesDone,
    Welcome,
    encode,
    from_leader,
)
from holdfast.preflight.rendezvous.rendezvous import comparable_variables, side_ports
from tests.ports import free_port
from tests.unit.preflight.rendezvous.peers import config, observed, run_peers


def test_peers_rendezvous_measure_and_share_one_result():
    port = free_port()
    outcomes = run_peers([config(port, node, 3) for node in range(3)], clocks=[0.0, 3.0])
    assert len({outcome.content for outcome in outcomes}) == 1
    observations = observed(outcomes[2])
    assert [each.peer.node for each in observations.participants] == [0, 1, 2]
    assert [each.leads for each in observations.participants] == [True, False, False]
    assert (observations.failed_probes, observations.lost, observations.rounds) == ((), {}, 3)
    assert observations.probe_count >= 6
    assert {
        (min(link.source, link.target), max(link.source, link.target))
        for link in observations.links
    } == {(0, 1), (0, 2), (1, 2)}
    assert all(
        link.outcome is ConnectOutcome.OPEN and link.forth > 0 and link.back > 0
        for link in observations.links
    )
    assert [observations.reports[number].environ["NCCL_DEBUG"] for number in range(3)] == [
        "0",
        "1",
        "2",
    ]
    ahead = {clock.number: clock for clock in observations.clocks}
    assert abs(ahead[1].ahead_s - 3) < max(ahead[1].within_s, 1e-3)
    assert abs(ahead[2].ahead_s) < max(ahead[2].within_s, 1e-3)


def test_the_owner_of_the_address_leads_without_ranks():
    port = free_port()
    observations = observed(run_peers([config(port, None, 2), config(port, None, 2)])[0])
    assert len(observations.participants) == 2


def test_missing_peers_are_awaited_up_to_the_limit():
    begun = time.monotonic()
    observations = observed(run_peers([config(free_port(), 0, 2, wait_s=1)])[0])
    assert [each.peer.node for each in observations.participants] == [0]
    assert observations.waited_s <= 1.1
    assert time.monotonic() - begun < 3


def test_own_peer_joins_without_waiting():
    observations = observed(run_peers([config(free_port(), 0, 2, wait_s=0)])[0])
    assert [each.peer.node for each in observations.participants] == [0]


@pytest.mark.parametrize(("second", "nodes"), [(1, 3), (0, 2)])
def test_contradicting_peers_end_the_wait(second, nodes):
    port = free_port()
    begun = time.monotonic()
    outcomes = run_peers([config(port, 0, 2, wait_s=20), config(port, second, nodes, wait_s=20)])
    assert len({outcome.content for outcome in outcomes}) == 1
    assert sorted(
        (each.peer.node, each.peer.nodes) for each in observed(outcomes[0]).participants
    ) == [
        (0, 2),
        (second, nodes),
    ]
    assert time.monotonic() - begun < 10


def test_peers_with_different_tokens_do_not_rendezvous():
    port = free_port()
    first, second = run_peers(
        [config(port, 0, 2, wait_s=1, token="a"), config(port, 1, 2, wait_s=1, token="b")]
    )
    assert len(observed(first).participants) == 1
    assert isinstance(second.content, Unknown)
    assert second.access.main.outcome is ConnectOutcome.INCOMPATIBLE


def test_a_port_in_use_is_reported_to_both():
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        outcomes = run_peers([config(port, 0, 2, wait_s=8), config(port, 1, 2, wait_s=8)])
    observations = observed(outcomes[1])
    assert outcomes[0].content == outcomes[1].content
    leader, other = observations.participants
    assert "in use" in leader.access.bound
    assert other.access.main.outcome is ConnectOutcome.FOREIGN_SERVICE
    assert any(side.outcome is ConnectOutcome.OPEN for side in other.access.side)


def test_an_unresolvable_endpoint():
    (unreached,) = run_peers([config(free_port(), 1, 2, host="no-such-host.invalid", wait_s=0.5)])
    assert isinstance(unreached.content, Unknown)
    assert isinstance(unreached.access.addresses, Unknown)


def test_noise_on_the_port_is_ignored():
    port = free_port()

    def noise():
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as stream:
                    stream.sendall(b"\xff" * 4096)
                    return stream.recv(17)
            except ConnectionRefusedError:
                time.sleep(0.02)
        return b""

    with ThreadPoolExecutor(1) as pool:
        response = pool.submit(noise)
        observations = observed(run_peers([config(port, 0, 2), config(port, 1, 2)])[0])
    assert response.result() == b"holdfast-check/1\n"
    assert len(observations.participants) == 2


async def _connect_to_leader(port):
    """Connect to the leader as soon as it listens, as a handwritten peer."""
    while True:
        stream, _ = await try_connect("127.0.0.1", port)
        if stream is not None:
            reader, writer = await asyncio.open_connection(sock=stream)
            connection = await start_handshake(reader, writer, derive_key(port, ""))
            assert isinstance(from_leader.decode(await connection.receive()), Welcome)
            return connection
        await asyncio.sleep(0.05)


def _run_with_peer(port, peer, *configs):
    """Run regular peers with one handwritten peer; return the observations."""

    async def limited():
        async with asyncio.timeout(30):
            connection = await _connect_to_leader(port)
            await peer(connection)
            connection.close()
            await asyncio.sleep(0.05)  # resources are released in the loop's next iterations

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, limited())
        outcomes = run_peers([*configs])
        done.result()
    return observed(outcomes[0])


def test_an_incompatible_peer_is_reported_and_not_awaited():
    port = free_port()

    async def join_as_other_version(connection):
        message_data = {
            "type": "join",
            "copy": {"version": "9.9", "host": "far", "node": 1, "endpoint": 7},
            "new": [],
        }
        await connection.send(msgspec.json.encode(message_data))
        with contextlib.suppress(OSError, EOFError):  # the leader closes the connection
            while True:
                await connection.receive()

    begun = time.monotonic()
    observations = _run_with_peer(port, join_as_other_version, config(port, 0, 2, wait_s=20))
    assert observations.incompatible == (IncompatiblePeer("9.9", "far", 1),)
    assert [each.peer.node for each in observations.participants] == [0]
    assert time.monotonic() - begun < 15


def test_an_incompatible_leader_differs_from_a_lost_connection():
    port = free_port()

    async def serve(reader, writer):
        connection = await accept_handshake(reader, writer, derive_key(port, ""))
        await connection.send(encode(Welcome("another", "9.9")))
        await connection.receive()
        await connection.send(b'{"type": "novelty"}')
        connection.close()

    async def leads():
        async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", port):
            return await asyncio.to_thread(run_peers, [config(port, 1, 2)])

    (outcome,) = asyncio.run(leads())
    assert isinstance(outcome.content, ProtocolMismatch)
    assert (outcome.content.version, outcome.version) == ("9.9", "9.9")
    assert "novelty" in outcome.content.why


def test_results_about_other_peers_are_ignored():
    port = free_port()
    joined = []
    other = observed(run_peers([config(free_port(), 0, 2, wait_s=0)])[0]).participants[0]

    async def send_false_results(connection):
        known = msgspec.structs.replace(other.peer, key="liar", node=1)
        await connection.send(encode(Join(known, other.access, 9, ())))
        attempt = ConnectAttempt(address="10.0.0.9", port=1, outcome=ConnectOutcome.TIMED_OUT)
        while True:
            message = from_leader.decode(await connection.receive())
            joined.append(type(message).__name__)
            if joined[-1] == "FinalResult":
                return
            if joined[-1] == "ReadClock":
                await connection.send(encode(ClockReply(time.time())))
            if joined[-1] == "ProbePeers":
                false_results = [
                    ProbeResult(source=a, target=b, purpose="data", attempt=attempt)
                    for a, b in ((0, 1), (1, 77), (-1, 0), (1, -1), (1, 0))
                ]
                lookups = (EndpointLookup(source=1, target=5, name="x", addresses=()),)
                await connection.send(encode(ProbesDone(tuple(false_results), 5, lookups)))
            if joined[-1] == "MeasureLink":
                await connection.send(
                    encode(LinkReply(LinkMeasurement(source=5, target=99, forth=1.0, back=1.0)))
                )

    observations = _run_with_peer(port, send_false_results, config(port, 0, 2, wait_s=20))
    assert "FinalResult" in joined
    assert [
        (each.source, each.target)
        for each in observations.failed_probes
        if each.attempt.address == "10.0.0.9"
    ] == [(1, 0)]
    assert all(
        each.source in (0, 1) and each.target in (0, 1) for each in observations.failed_probes
    )
    assert observations.links == ()
    assert observations.lookups == () or {each.source for each in observations.lookups} == {0}


def test_side_ports_depend_on_the_port_only():
    assert side_ports(29500, (29500, 29510)) == side_ports(29500, (29500, 29510))
    assert 29500 not in side_ports(29500, (29500, 29500))


def test_no_secret_leaves_the_host():
    variables = comparable_variables(
        {"NCCL_DEBUG": "INFO", "HOLDFAST_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "HOME": "/root"}
    )
    assert variables == {"NCCL_DEBUG": "INFO"}
