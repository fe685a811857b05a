"""How a peer joins the rendezvous: resolve the endpoint, check whose address it is, lead or follow.

The peer with node rank 0 leads, or, without node ranks, the one that owns the endpoint's address.
It listens on the endpoint and on some side ports derived from it: a peer that reaches only a side
port proves that the endpoint's own port is blocked or taken. A peer that owns the endpoint's
address and finds no leader there leads in place of node 0, so the peers meet even if the endpoint
is the address of the wrong host.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import __version__
from holdfast.core.findings import Unknown
from holdfast.host.environment import REDACTED, is_relevant_variable, redact_value
from holdfast.preflight.rendezvous import (
    ConnectAttempt,
    ConnectOutcome,
    EndpointAccess,
    Observations,
    Peer,
    PeerReport,
    ProtocolMismatch,
)
from holdfast.preflight.rendezvous.addresses import (
    interface_of,
    is_own,
    list_interfaces,
    published_addresses,
    source_to,
)
from holdfast.preflight.rendezvous.connect_attempts import CONNECT_LIMIT_S, try_connect
from holdfast.preflight.rendezvous.frames import (
    ForeignService,
    KeyMismatch,
    PeerConnection,
    derive_key,
    start_handshake,
)
from holdfast.preflight.rendezvous.leader import Leader
from holdfast.preflight.rendezvous.listening_ports import ProbeListeners
from holdfast.preflight.rendezvous.member import RendezvousMember
from holdfast.preflight.rendezvous.messages import Welcome, from_leader
from holdfast.preflight.rendezvous.name_lookup import resolve_names

#: How long to retry an unknown name: pods of one job start together.
NAME_LIMIT_S = 3.0
#: How long the owner of the endpoint's address leaves listening to node 0.
DEFER_S = 1.5
_RETRY_S = 0.25
_Result = TypeVar("_Result")
_Try = tuple[PeerConnection | None, ConnectAttempt]
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


class RendezvousConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint, this peer's node rank, how long it waits, and the job's port range."""

    host: str
    port: int
    nodes: int
    node: int | None = None
    wait_s: float = 10.0
    token: str = ""
    ports: tuple[int, int] = (29500, 29510)
    environ: dict[str, str] = {}
    names: tuple[str, ...] = ()


class RendezvousOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one peer.

    ``content``: the shared result, Unknown if this peer did not get one.

    ``version``: the leader's version of holdfast, if known.
    """

    peer: Peer
    access: EndpointAccess
    content: bytes | Unknown
    observed: Observations | None = None
    version: str = ""

    def decode_result(self, kind: type[_Result]) -> _Result | Unknown:
        """Return the shared result; Unknown if there is none or the leader sent another kind."""
        if isinstance(self.content, Unknown):
            return self.content
        try:
            return msgspec.json.decode(self.content, type=kind)
        except msgspec.DecodeError as error:
            return ProtocolMismatch(f"the leader's result cannot be decoded: {error}", self.version)


def side_ports(port: int, ports: tuple[int, int]) -> tuple[int, ...]:
    """Return the rendezvous' other ports.

    They are the range's end, one below and one in the ephemeral range.
    """
    digest = hashlib.sha256(f"holdfast side doors {port}".encode()).digest()
    low, high = (int.from_bytes(digest[at : at + 2], "big") % 10_000 for at in (0, 2))
    return tuple(each for each in (ports[1], 20_000 + low, 40_000 + high) if each != port)


async def run_rendezvous(
    config: RendezvousConfig,
    report: Callable[[], Awaitable[PeerReport]],
    judge: Callable[[Observations], bytes],
    now: Callable[[], float] = time.time,
) -> RendezvousOutcome:
    """Join the rendezvous, and return the shared result or how far this peer got.

    Raises:
        OSError: this host does not permit listening on any port.
    """
    until = time.monotonic() + config.wait_s
    peer, access = await _describe_peer(config)
    listeners = await ProbeListeners.open(_range_ports(config))
    try:
        return await _Rendezvous(config, peer, access, until).run(listeners, report, judge, now)
    finally:
        listeners.close()
        await asyncio.sleep(0.01)  # closed connections are released in the loop's next iterations


def _range_ports(config: RendezvousConfig) -> list[int]:
    used = {config.port, *side_ports(config.port, config.ports)}
    return [port for port in range(config.ports[0], config.ports[1] + 1) if port not in used]


async def _describe_peer(config: RendezvousConfig) -> tuple[Peer, EndpointAccess]:
    """Return this peer, and what is known about the endpoint before anything is sent."""
    interfaces, own_name = list_interfaces(), socket.gethostname()
    begun = time.monotonic()
    resolved = await resolve_names((config.host, own_name))
    while isinstance(resolved[config.host], Unknown) and time.monotonic() - begun < min(
        NAME_LIMIT_S, config.wait_s
    ):
        await asyncio.sleep(_RETRY_S)
        resolved |= await resolve_names((config.host,))
    addresses = resolved[config.host]
    source = "" if isinstance(addresses, Unknown) else source_to(addresses[0])
    peer = Peer(
        key=secrets.token_hex(8),
        node=config.node,
        nodes=config.nodes,
        host=own_name,
        name=await asyncio.to_thread(_full_name, resolved[own_name]),
        machine=_machine_id(),
        version=__version__,
        endpoint=f"{config.host}:{config.port}",
        interfaces=interfaces,
        published=published_addresses(config.environ, interfaces, resolved[own_name]),
        devices=_has_gpu_devices(),
        names=config.names,
    )
    access = EndpointAccess(
        host=config.host,
        port=config.port,
        addresses=addresses,
        resolve_s=round(time.monotonic() - begun, 3),
        owned=not isinstance(addresses, Unknown) and is_own(addresses[0]),
        source=source,
        interface=interface_of(source, interfaces),
    )
    return peer, access


def _full_name(own_addresses: tuple[str, ...] | Unknown) -> str:
    """Return the name that torchrun's c10d publishes.

    Getfqdn is slow if the name does not resolve.
    """
    return socket.gethostname() if isinstance(own_addresses, Unknown) else socket.getfqdn()


def _has_gpu_devices() -> bool:
    return any(Path(device).exists() for device in _DEVICES)


def _machine_id() -> str:
    """Return an id that is equal for processes with the same kernel and network namespace."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116 - not a real file
    return secrets.token_hex(8)


class _Rendezvous:
    """One peer's part in the rendezvous."""

    def __init__(
        self, config: RendezvousConfig, peer: Peer, access: EndpointAccess, until: float
    ) -> None:
        self._config, self._peer, self._access, self._until = config, peer, access, until
        self._key = derive_key(config.port, config.token)
        self._side_ports = side_ports(config.port, config.ports)
        self._must_lead = False
        self._version = ""

    @property
    def _address(self) -> str:
        return "" if isinstance(self._access.addresses, Unknown) else self._access.addresses[0]

    async def run(
        self,
        listeners: ProbeListeners,
        report: Callable[[], Awaitable[PeerReport]],
        judge: Callable[[Observations], bytes],
        now: Callable[[], float],
    ) -> RendezvousOutcome:
        """Lead or follow."""
        leader: Leader | None = None
        connection: PeerConnection | None = None
        if self._config.node == 0 or (self._config.node is None and self._access.owned):
            leader, connection = await self._start_leading(judge)
        else:
            connection = await self._find_leader()
            if connection is None and self._must_lead:
                leader, connection = await self._start_leading(judge)
        member = RendezvousMember(self._peer, self._access, listeners, report, now)
        wait_s = self._config.wait_s
        if connection is not None:
            if leader is not None:
                leader.close()
            return self._outcome(await member.follow(connection))
        if leader is None:
            return self._outcome(Unknown(f"no leader was reached within {wait_s:g} s"))
        try:
            observed, content = await leader.lead(member, self._until - wait_s, wait_s)
        finally:
            leader.close()
        return replace(self._outcome(content), observed=observed)

    def _outcome(self, content: bytes | Unknown) -> RendezvousOutcome:
        if isinstance(content, Unknown) and self._version not in ("", __version__):
            content = ProtocolMismatch(content.why, self._version)
        return RendezvousOutcome(
            peer=self._peer, access=self._access, content=content, version=self._version
        )

    async def _start_leading(
        self, judge: Callable[[Observations], bytes]
    ) -> tuple[Leader | None, PeerConnection | None]:
        """Listen, unless another peer already leads at the endpoint; then connect to it."""
        leader = Leader(self._key, self._peer.key, self._config.nodes, judge)
        bound = await leader.listen(self._config.port)
        self._access = replace(self._access, bound=bound)
        if bound != "listening" or not self._access.owned:
            connection = await self._find_other_leader(leader)
            if connection is not None:
                return leader, connection
        for port in self._side_ports:
            await leader.listen(port)
        return leader, None

    async def _find_other_leader(self, leader: Leader) -> PeerConnection | None:
        """Find another leader if this peer cannot listen at the endpoint or does not own it."""
        if not self._address:
            return None
        # Its owner leaves listening to node 0 for a while, and leads only after that.
        until = time.monotonic() + (0 if self._access.bound != "listening" else DEFER_S + 1.5)
        while True:
            connection, attempt = await self._try_connect(self._address, self._config.port)
            self._access = replace(self._access, main=attempt)
            if (
                connection is not None
                or attempt.outcome is not ConnectOutcome.REFUSED
                or time.monotonic() > until
                or leader.other_peers
            ):
                return connection
            await asyncio.sleep(_RETRY_S)

    async def _find_leader(self) -> PeerConnection | None:
        """Retry the endpoint until a leader answers.

        None if none does, or if this peer must lead.
        """
        if not self._address:
            return None
        refused_since: float | None = None
        while True:
            connection, main, side = await self._try_all_ports()
            if main.outcome is not ConnectOutcome.REFUSED or not _is_informative(self._access.main):
                self._access = replace(self._access, main=main, side=side)
            if connection is not None:
                return connection
            unclaimed = main.outcome is ConnectOutcome.REFUSED and self._access.owned
            refused_since = (refused_since or time.monotonic()) if unclaimed else None
            if refused_since is not None and time.monotonic() - refused_since > DEFER_S:
                self._must_lead = True
                return None
            # Do not begin a round that cannot end in time; a missing route stays missing.
            slow_s = CONNECT_LIMIT_S if main.elapsed_s > 1 else 0.0
            late = time.monotonic() + slow_s > self._until
            if late or main.outcome is ConnectOutcome.NO_ROUTE:
                return None
            await asyncio.sleep(_RETRY_S)

    async def _try_all_ports(
        self,
    ) -> tuple[PeerConnection | None, ConnectAttempt, tuple[ConnectAttempt, ...]]:
        """Try the endpoint and its side ports at once.

        Retry the endpoint if only a side port opens.
        """
        main = asyncio.ensure_future(self._try_connect(self._address, self._config.port))
        sides = [
            asyncio.ensure_future(self._try_connect(self._address, port))
            for port in self._side_ports
        ]
        chosen: PeerConnection | None = None
        try:
            await asyncio.wait([main, *sides], return_when=asyncio.FIRST_COMPLETED)
            if main.done() and main.result()[0] is not None:
                chosen, attempt = main.result()
                return chosen, attempt, ()
            side_tries = await asyncio.gather(*sides)
            chosen, attempt = await main
            side = next(
                (connection for connection, _ in side_tries if connection is not None), None
            )
            timed_out = attempt.outcome is ConnectOutcome.TIMED_OUT
            if chosen is None and side is not None and not timed_out:
                chosen, attempt = await self._try_connect(self._address, self._config.port)
            chosen = chosen or side
            return chosen, attempt, tuple(each for _, each in side_tries)
        finally:
            for task in (main, *sides):
                task.add_done_callback(lambda done: _close_unused(done, chosen))
                task.cancel()

    async def _try_connect(self, address: str, port: int) -> _Try:
        """Connect once and perform the handshake."""
        stream, attempt = await try_connect(address, port, small=True)
        if stream is None:
            return None, attempt
        reader, writer = await asyncio.open_connection(sock=stream)
        try:
            connection = await start_handshake(reader, writer, self._key)
            message = from_leader.decode(await connection.receive())
        except ForeignService as error:
            writer.close()
            outcome = ConnectOutcome.FOREIGN_SERVICE
            return None, replace(attempt, outcome=outcome, detail=str(error))
        except (KeyMismatch, OSError, EOFError, msgspec.DecodeError) as error:
            writer.close()
            outcome = ConnectOutcome.INCOMPATIBLE
            return None, replace(attempt, outcome=outcome, detail=str(error))
        except BaseException:
            writer.close()
            raise
        if not isinstance(message, Welcome):
            writer.close()
            outcome = ConnectOutcome.INCOMPATIBLE
            return None, replace(attempt, outcome=outcome, detail="it uses another protocol")
        self._version = message.version
        if message.key == self._peer.key:
            writer.close()
            return None, replace(attempt, detail="it is this process itself")
        return connection, attempt


def _close_unused(tried: asyncio.Task[_Try], chosen: PeerConnection | None) -> None:
    """Close a connection that was opened and not chosen."""
    if not tried.cancelled() and tried.exception() is None:
        connection, _ = tried.result()
        if connection is not None and connection is not chosen:
            connection.close()


def _is_informative(previous: ConnectAttempt | None) -> bool:
    """Return whether the earlier attempt explains more than a refused one: something answered."""
    return previous is not None and previous.outcome in (
        ConnectOutcome.INCOMPATIBLE,
        ConnectOutcome.FOREIGN_SERVICE,
    )


def comparable_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are compared between hosts, without secrets."""
    shown = {
        name: redact_value(name, value)
        for name, value in environ.items()
        if is_relevant_variable(name)
    }
    return {name: value for name, value in shown.items() if value != REDACTED}
