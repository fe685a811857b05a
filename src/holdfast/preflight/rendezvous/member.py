"""A peer in the rendezvous: executes the leader's requests until it gets the shared result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from holdfast.core.findings import Unknown
from holdfast.preflight.rendezvous import (
    ConnectOutcome,
    EndpointAccess,
    EndpointLookup,
    LinkMeasurement,
    Participant,
    Peer,
    PeerReport,
    ProbeResult,
)
from holdfast.preflight.rendezvous.addresses import is_loopback
from holdfast.preflight.rendezvous.frames import PeerConnection
from holdfast.preflight.rendezvous.listening_ports import ProbeListeners, measure_link, probe
from holdfast.preflight.rendezvous.messages import (
    ClockReply,
    FinalResult,
    FromLeader,
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
    encode,
    from_leader,
)
from holdfast.preflight.rendezvous.name_lookup import resolve_names

#: The leader sends a heartbeat every second.
SILENCE_LIMIT_S = 6.0
_CONCURRENT_PROBES = 256
#: With more hosts than this, range ports are not probed and only one name is resolved.
_MANY_HOSTS = 64


class RendezvousMember:
    """One peer in the rendezvous; ``now`` is its clock."""

    def __init__(
        self,
        peer: Peer,
        access: EndpointAccess,
        listeners: ProbeListeners,
        report: Callable[[], Awaitable[PeerReport]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._peer, self._access, self._listeners = peer, access, listeners
        self._report, self._now = report, now
        self._roster = Roster("", 0, ())
        self._tasks: set[asyncio.Task[None]] = set()
        self._leader_address = ""

    async def follow(self, connection: PeerConnection) -> bytes | Unknown:
        """Serve requests until the result arrives; Unknown if the leader stops responding first."""
        self._leader_address = connection.peer_address
        listeners = self._listeners
        try:
            await connection.send(
                encode(Join(self._peer, self._access, listeners.port, listeners.range_ports))
            )
            while True:
                async with asyncio.timeout(SILENCE_LIMIT_S):
                    message = from_leader.decode(await connection.receive())
                if isinstance(message, FinalResult):
                    return message.content
                await self._handle(message, connection)
        except TimeoutError:
            return Unknown(f"the leader sent nothing for {SILENCE_LIMIT_S:g} s")
        except (OSError, EOFError, msgspec.DecodeError) as error:
            return Unknown(f"the connection to the leader was lost: {str(error) or 'closed'}")
        finally:
            for task in self._tasks:
                task.cancel()
            connection.close()

    async def _handle(self, message: FromLeader, connection: PeerConnection) -> None:
        if isinstance(message, ReadClock):
            await connection.send(encode(ClockReply(self._now())))
        elif isinstance(message, Roster):
            self._roster = message
            self._listeners.accept(message.word, message.number)
        elif isinstance(message, ProbePeers | SendReport | MeasureLink):
            task = asyncio.ensure_future(self._execute(message, connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _execute(
        self, message: ProbePeers | SendReport | MeasureLink, connection: PeerConnection
    ) -> None:
        reply: ToLeader
        if isinstance(message, ProbePeers):
            reply = await self._probe_peers()
        elif isinstance(message, SendReport):
            reply = ReportReply(await self._report())
        else:
            reply = LinkReply(await self._measure_link(message.target))
        with suppress(OSError):
            await connection.send(encode(reply))

    async def _probe_peers(self) -> ProbesDone:
        own = self._roster.number
        others = [each for each in self._roster.participants if each.number != own]
        slots = asyncio.Semaphore(_CONCURRENT_PROBES)

        async def probe_one(target: int, purpose: str, address: str, port: int) -> ProbeResult:
            async with slots:
                attempt = await probe(
                    self._roster.word, target, address, port, large=purpose != "range"
                )
            return ProbeResult(source=own, target=target, purpose=purpose, attempt=attempt)

        few = len(others) < _MANY_HOSTS
        targets = [
            (other.number, *target)
            for other in others
            for target in self._probe_targets(other, with_range=few)
        ]
        lookups = asyncio.ensure_future(self._look_up_names(others if few else others[:1]))
        results = await asyncio.gather(*(probe_one(*target) for target in targets))
        failed = tuple(
            result for result in results if result.attempt.outcome is not ConnectOutcome.OPEN
        )
        return ProbesDone(failed, len(results), await lookups)

    def _probe_targets(self, other: Participant, *, with_range: bool) -> list[tuple[str, str, int]]:
        """Return purpose, address and port of each probe of another peer."""
        address = self._address_of(other)
        targets = [("data", address, other.probe_port)]
        for each in other.peer.published:
            if isinstance(each.address, Unknown) or each.address in {item[1] for item in targets}:
                continue
            if not is_loopback(each.address) or other.peer.machine == self._peer.machine:
                targets.append((each.library, each.address, other.probe_port))
        return targets + [("range", address, port) for port in other.range_ports if with_range]

    def _address_of(self, other: Participant) -> str:
        """Return its source address; for the leader, the address to which this peer connected."""
        return other.seen_as or self._leader_address

    async def _look_up_names(self, others: list[Participant]) -> tuple[EndpointLookup, ...]:
        addresses = await resolve_names(each.peer.name for each in others)
        return tuple(
            EndpointLookup(
                source=self._roster.number,
                target=each.number,
                name=each.peer.name,
                addresses=addresses[each.peer.name],
            )
            for each in others
            if each.peer.name in addresses
        )

    async def _measure_link(self, target: int) -> LinkMeasurement:
        own = self._roster.number
        other = next((each for each in self._roster.participants if each.number == target), None)
        if other is None:
            return LinkMeasurement(
                source=own, target=target, outcome=ConnectOutcome.FAILED, detail="no such peer"
            )
        return await measure_link(
            self._roster.word, own, target, self._address_of(other), other.probe_port
        )
