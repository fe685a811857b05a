"""The leading peer, at the endpoint.

Collects peers, requests observations, sends the result to all.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast import __version__
from holdfast.core.round_robin import round_count, round_pairs
from holdfast.preflight.rendezvous import (
    ClockOffset,
    ConnectOutcome,
    EndpointAccess,
    IncompatiblePeer,
    LinkMeasurement,
    Observations,
    Participant,
    PeerReport,
    ProbeResult,
)
from holdfast.preflight.rendezvous.frames import (
    PeerConnection,
    accept_handshake,
    normalize_address,
    start_handshake,
)
from holdfast.preflight.rendezvous.listening_ports import create_listener
from holdfast.preflight.rendezvous.member import RendezvousMember
from holdfast.preflight.rendezvous.messages import (
    ClockReply,
    FinalResult,
    FromLeader,
    Heartbeat,
    Join,
    LinkReply,
    MeasureLink,
    ProbePeers,
    ProbesDone,
    ReadClock,
    ReportReply,
    Roster,
    SendReport,
    ToLeader,
    Welcome,
    decode_join,
    encode,
    to_leader,
)

#: How long to wait for more peers after some contradict each other.
GRACE_S = 1.0
#: Limits: probes (one unanswered connection and one stalled large message), reports, all rounds, a
#: round.
PROBE_LIMIT_S = 8.0
REPORT_LIMIT_S = 9.0
ROUNDS_LIMIT_S = 8.0
ROUND_LIMIT_S = 9.0
_CLOCK_LIMIT_S = 1.0
_CLOCK_EXCHANGES = 10
#: Accepted peers per expected node: duplicates are reported, more are ignored.
_MAX_PEERS_PER_NODE = 8
_GOODBYE_S = 2.0
_SEND_LIMIT_S = 5.0
#: Poll interval for the own peer, which needs no network.
_POLL_S = 0.1
#: Clocks are read in groups of this size.
_CLOCKS_AT_ONCE = 8
_Reply = TypeVar("_Reply", bound=msgspec.Struct)


class ConnectedPeer:
    """One peer that joined: its connection, its join message, and its replies by kind."""

    def __init__(self, connection: PeerConnection, join: Join, *, leads: bool) -> None:
        self.connection, self.join, self.leads = connection, join, leads
        self.number = 0
        self.lost = ""
        self._replies: dict[type, asyncio.Queue[Any]] = {}
        self.closed = asyncio.Event()

    def replies(self, kind: type[_Reply]) -> asyncio.Queue[_Reply]:
        """Return the queue of replies of this kind."""
        return self._replies.setdefault(kind, asyncio.Queue())

    async def send(self, message: FromLeader) -> None:
        """Send a message, or record the failure: a blocked peer must not delay the others."""
        try:
            async with asyncio.timeout(_SEND_LIMIT_S):
                await self.connection.send(encode(message))
        except TimeoutError:
            self.lost = self.lost or f"it received nothing for {_SEND_LIMIT_S:g} s"
        except OSError as error:
            self.lost = self.lost or f"the connection was lost: {error.strerror or error}"

    async def request(
        self, message: FromLeader, kind: type[_Reply], limit_s: float
    ) -> _Reply | None:
        """Send a request and return the reply; None if it does not arrive in time."""
        if self.lost:
            return None
        await self.send(message)
        try:
            async with asyncio.timeout(limit_s):
                return await self.replies(kind).get()
        except TimeoutError:
            return None


class Leader:
    """Leads ``nodes`` peers that share ``key``.

    ``judge`` turns observations into the shared result.
    """

    def __init__(
        self, key: bytes, name: str, nodes: int, judge: Callable[[Observations], bytes]
    ) -> None:
        self._key, self._name, self._nodes, self._judge = key, name, nodes, judge
        self._peers: dict[str, ConnectedPeer] = {}
        self._incompatible: set[IncompatiblePeer] = set()
        self._changed = asyncio.Event()
        self._word = secrets.token_hex(16)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def other_peers(self) -> int:
        """Return how many peers joined besides the leader's own."""
        return sum(not peer.leads for peer in self._peers.values())

    async def listen(self, port: int) -> str:
        """Accept peers on this port; return "listening", or why that failed."""
        try:
            server = await asyncio.start_server(self._serve, sock=create_listener(port))
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
        self._servers.append(server)
        return "listening"

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()

    async def lead(
        self, own: RendezvousMember, begun: float, wait_s: float
    ) -> tuple[Observations, bytes]:
        """Wait for peers until ``begun + wait_s`` (monotonic).

        Then observe, judge and send the result.
        """
        own_end, leader_end = socket.socketpair()
        self._start(self._serve(*await asyncio.open_connection(sock=leader_end), leads=True))
        own_task = self._start(self._serve_own_member(own, own_end))
        heartbeats = self._start(self._send_heartbeats())
        await self._wait_for_peers(max(begun + wait_s - time.monotonic(), 0))
        waited_s = time.monotonic() - begun
        observed = await self._observe(self._number_peers(), round(waited_s, 2))
        content = self._judge(observed)
        await self._send_result(content)
        heartbeats.cancel()
        with suppress(asyncio.CancelledError):
            await own_task
        return observed, content

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve_own_member(self, own: RendezvousMember, end: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=end)
        with suppress(OSError, EOFError):
            connection = await start_handshake(reader, writer, self._key)
            await connection.receive()
            await own.follow(connection)

    # ---- joining

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, leads: bool = False
    ) -> None:
        peer = None
        try:
            connection = await accept_handshake(reader, writer, self._key)
            await connection.send(encode(Welcome(self._name, __version__)))
            join = decode_join(await connection.receive())
            if len(self._peers) + len(self._incompatible) >= _MAX_PEERS_PER_NODE * self._nodes:
                return
            if isinstance(join, IncompatiblePeer):
                self._incompatible.add(join)
                self._changed.set()
                return
            peer = ConnectedPeer(connection, join, leads=leads)
            self._peers[join.peer.key] = peer
            self._changed.set()
            while True:
                reply: ToLeader = to_leader.decode(await connection.receive())
                peer.replies(type(reply)).put_nowait(reply)
        except (
            OSError,
            EOFError,
            TimeoutError,
            msgspec.DecodeError,
            asyncio.CancelledError,
        ) as error:
            if peer is not None:
                peer.lost = peer.lost or f"its connection was lost: {str(error) or 'closed'}"
        finally:
            if peer is not None:
                peer.closed.set()
                self._changed.set()
            writer.close()

    async def _wait_for_peers(self, wait_s: float) -> None:
        """Wait until all nodes joined, peers contradict each other, or time is up.

        The leader's own peer is always awaited.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        conflict_seen = False
        while loop.time() < until or not any(peer.leads for peer in self._peers.values()):
            joined = [peer.join.peer for peer in self._peers.values() if not peer.lost]
            nodes = [peer.node for peer in joined if peer.node is not None]
            conflict = len(nodes) != len(set(nodes)) or any(
                peer.nodes != self._nodes for peer in joined
            )
            if not conflict and len(joined) + len(self._incompatible) >= self._nodes:
                return
            if conflict and not conflict_seen:
                conflict_seen, until = True, min(until, loop.time() + GRACE_S)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(max(until, loop.time() + _POLL_S)):
                    await self._changed.wait()

    async def _send_heartbeats(self) -> None:
        while True:
            for peer in list(self._peers.values()):
                if not peer.lost:
                    await peer.send(Heartbeat(len(self._peers), self._nodes))
            await asyncio.sleep(1)

    def _number_peers(self) -> list[ConnectedPeer]:
        """Number the connected peers by node rank; peers that join later only get the result."""
        connected = [peer for peer in self._peers.values() if not peer.lost]
        connected.sort(
            key=lambda peer: (
                peer.join.peer.node is None,
                peer.join.peer.node or 0,
                not peer.leads,
                peer.join.peer.host,
                peer.join.peer.key,
            )
        )
        for number, peer in enumerate(connected):
            peer.number = number
        return connected

    # ---- observing

    async def _observe(self, peers: list[ConnectedPeer], waited_s: float) -> Observations:
        participants = tuple(_participant(peer) for peer in peers)
        brief = tuple(_brief(each) for each in participants)
        await asyncio.gather(*(peer.send(Roster(self._word, peer.number, brief)) for peer in peers))
        clocks = await self._measure_clocks(peers)
        requests = [
            asyncio.ensure_future(peer.request(SendReport(), ReportReply, REPORT_LIMIT_S))
            for peer in peers
        ]
        probes = await asyncio.gather(*(self._probe_from(peer, len(peers)) for peer in peers))
        reports = await _collect_reports(peers, requests, probes)
        failed = tuple(result for each in probes if each for result in each.failed_probes)
        for peer, result in zip(peers, probes, strict=True):
            if result is None:
                peer.lost = peer.lost or f"it sent no probe results within {PROBE_LIMIT_S:g} s"
        links, rounds, unmeasured = await self._measure_links(
            peers, _measurable_pairs(probes, failed, len(peers))
        )
        return Observations(
            nodes=self._nodes,
            waited_s=waited_s,
            participants=participants,
            incompatible=tuple(sorted(self._incompatible, key=lambda each: each.label)),
            failed_probes=failed,
            probe_count=sum(each.probe_count for each in probes if each),
            lookups=tuple(lookup for each in probes if each for lookup in each.lookups),
            links=links,
            clocks=clocks,
            reports=reports,
            lost={peer.number: peer.lost for peer in peers if peer.lost},
            rounds=rounds,
            unmeasured=unmeasured,
        )

    async def _probe_from(self, peer: ConnectedPeer, size: int) -> ProbesDone | None:
        """Return the peer's probe results, without those of other sources or unknown targets."""
        done = await peer.request(ProbePeers(), ProbesDone, PROBE_LIMIT_S)
        if done is None:
            return None
        known = range(size)
        failed = tuple(
            result
            for result in done.failed_probes
            if result.source == peer.number and result.target in known
        )
        lookups = tuple(
            lookup
            for lookup in done.lookups
            if lookup.source == peer.number and lookup.target in known
        )
        return msgspec.structs.replace(done, failed_probes=failed, lookups=lookups)

    async def _measure_clocks(self, peers: list[ConnectedPeer]) -> tuple[ClockOffset, ...]:
        offsets: list[ClockOffset | None] = []
        for at in range(0, len(peers), _CLOCKS_AT_ONCE):
            offsets += await asyncio.gather(
                *(self._measure_clock(peer) for peer in peers[at : at + _CLOCKS_AT_ONCE])
            )
        return tuple(filter(None, offsets))

    async def _measure_clock(self, peer: ConnectedPeer) -> ClockOffset | None:
        """Apply Cristian's algorithm: the fastest exchange counts.

        Its error is half its duration.
        """
        best: ClockOffset | None = None
        for _ in range(_CLOCK_EXCHANGES):
            sent_at, begun = time.time(), time.perf_counter()
            reply = await peer.request(ReadClock(), ClockReply, _CLOCK_LIMIT_S)
            if reply is None:
                break
            half = (time.perf_counter() - begun) / 2
            if best is None or half < best.within_s:
                best = ClockOffset(peer.number, reply.time - sent_at - half, half)
        return best

    async def _measure_links(
        self, peers: list[ConnectedPeer], measurable: dict[tuple[int, int], bool]
    ) -> tuple[tuple[LinkMeasurement, ...], int, int]:
        """Measure reachable pairs in rounds.

        Return links, rounds done, and pairs left for lack of time.
        """
        until = asyncio.get_running_loop().time() + ROUNDS_LIMIT_S
        links: list[LinkMeasurement] = []
        total = round_count(len(peers))
        for number in range(total):
            if asyncio.get_running_loop().time() > until:
                left = sum(len(list(round_pairs(len(peers), at))) for at in range(number, total))
                return tuple(links), number, left
            directed = (
                next((way for way in (pair, pair[::-1]) if measurable[way]), None)
                for pair in round_pairs(len(peers), number)
            )
            pairs = [pair for pair in directed if pair is not None]
            replies = await asyncio.gather(
                *(
                    peers[source].request(MeasureLink(target), LinkReply, ROUND_LIMIT_S)
                    for source, target in pairs
                )
            )
            links += [
                reply.link
                for pair, reply in zip(pairs, replies, strict=True)
                if reply and (reply.link.source, reply.link.target) == pair
            ]
        return tuple(links), total, 0

    # ---- the end

    async def _send_result(self, content: bytes) -> None:
        """Send the result to all peers, late ones included, and wait for its delivery."""
        peers = [peer for peer in self._peers.values() if not peer.closed.is_set()]
        await asyncio.gather(*(peer.send(FinalResult(content)) for peer in peers))
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.gather(*(peer.closed.wait() for peer in peers if not peer.lost))


async def _collect_reports(
    peers: list[ConnectedPeer],
    requests: list[asyncio.Task[ReportReply | None]],
    probes: list[ProbesDone | None],
) -> dict[int, PeerReport]:
    """Await the reports, by number of the peer; a peer without probe results is not waited for."""
    for task, result in zip(requests, probes, strict=True):
        if result is None and not task.done():
            task.cancel()
    await asyncio.wait(requests)
    replies = [None if task.cancelled() else task.result() for task in requests]
    return {peer.number: reply.report for peer, reply in zip(peers, replies, strict=True) if reply}


def _participant(peer: ConnectedPeer) -> Participant:
    join = peer.join
    return Participant(
        number=peer.number,
        peer=join.peer,
        access=join.access,
        seen_as="" if peer.leads else normalize_address(peer.connection.peer_address),
        probe_port=join.probe_port,
        range_ports=join.range_ports,
        leads=peer.leads,
    )


def _brief(participant: Participant) -> Participant:
    """Return what the other peers need of it."""
    return msgspec.structs.replace(
        participant,
        access=EndpointAccess(host="", port=0, addresses=()),
        peer=msgspec.structs.replace(participant.peer, interfaces=(), names=()),
    )


def _measurable_pairs(
    probes: list[ProbesDone | None], failed: tuple[ProbeResult, ...], size: int
) -> dict[tuple[int, int], bool]:
    """Return for each (source, target) whether connections and large messages pass both ways."""
    pairs = {
        (source, target): probes[source] is not None and probes[target] is not None
        for source in range(size)
        for target in range(size)
    }
    for result in failed:
        if result.purpose == "data":
            pairs[result.source, result.target] = False
            if result.attempt.outcome is ConnectOutcome.STALLED:
                pairs[result.target, result.source] = False
    return pairs
