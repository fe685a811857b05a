"""Send the reports of all copies of this command to the first copy, over one TCP connection each.

Before any data is sent, both sides prove that they know the secret: HMAC-SHA256 over a nonce of
either side. The first copy sends first, so that an unrelated service at the port receives nothing
from another copy. Sizes and times are bounded. Ports are derived from the secret; if one is in use,
both sides try the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from holdfast.core.findings import Unknown
from holdfast.diagnose.attach.remote import HostObservation

#: How long the first copy and the others wait for each other. Copies may start seconds apart.
GATHER_TIMEOUT_S = 20.0
_HELLO = b"holdfast-attach/1 "
_PROOF_BYTES = 32
_LENGTH_BYTES = 8
_MAX_BYTES = 64 << 20
_STEP_TIMEOUT_S = 5.0
_CONNECT_TIMEOUT_S = 1.5
_RETRY_S = 0.3
#: Below the ports that systems use for outgoing connections (from 32768 on Linux).
_FIRST_PORT, _PORTS, _TRIES = 20_000, 12_000, 8


class NodeReport(msgspec.Struct, frozen=True):
    """The report of one node; without an observation (no such job there), ``why`` is the reason."""

    node: int
    observation: HostObservation | None = msgspec.field(default=None, name="seen")
    why: str = ""


class CopyRendezvous(msgspec.Struct, frozen=True):
    """Where copies connect: the host of the first copy, and a secret that only copies derive."""

    address: str
    secret: bytes

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports to try, in this order."""
        digest = hashlib.sha256(b"port" + self.secret).digest()
        return tuple(
            _FIRST_PORT + int.from_bytes(digest[2 * index : 2 * index + 2], "big") % _PORTS
            for index in range(_TRIES)
        )

    def proof(self, *parts: bytes) -> bytes:
        """Return the HMAC over ``parts``, which requires the secret."""
        return hmac.digest(self.secret, b"\0".join(parts), "sha256")


async def collect_reports(
    rendezvous: CopyRendezvous, nodes: int, own: Callable[[], Awaitable[NodeReport]]
) -> tuple[Mapping[int, NodeReport], str]:
    """Return the reports by node, including the own one (node 0), and why no other can arrive."""
    reports: dict[int, NodeReport] = {}
    complete = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
            report = await _receive(rendezvous, reader, writer)
            if 0 < report.node < nodes:
                reports.setdefault(report.node, report)
        writer.close()
        if len(reports) == nodes - 1:
            complete.set()

    server = await _listen(rendezvous, serve, nodes)
    deadline = asyncio.get_running_loop().time() + GATHER_TIMEOUT_S
    try:
        own_report = await own()
        if server is not None and nodes > 1:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await complete.wait()
    finally:
        if server is not None:
            server.close()
    ports = ", ".join(map(str, rendezvous.ports))
    failure = f"none of the ports {ports} is free" if server is None else ""
    return {0: own_report, **reports}, failure


async def send_report(rendezvous: CopyRendezvous, report: NodeReport) -> Unknown | None:
    """Send ``report`` to the first copy; return None, or why it failed."""
    payload = msgspec.json.encode(report)
    if len(payload) > _MAX_BYTES:
        why = f"the observation is larger than {_MAX_BYTES >> 20} MiB"
        payload = msgspec.json.encode(NodeReport(report.node, why=why))
    why = "no copy is listening there"
    with suppress(TimeoutError):
        async with asyncio.timeout(GATHER_TIMEOUT_S):
            while True:
                for port in rendezvous.ports:
                    try:
                        if await _send(rendezvous, port, payload):
                            return None
                    except (OSError, EOFError, TimeoutError) as error:
                        why = str(error) or why
                await asyncio.sleep(_RETRY_S)
    return Unknown(
        f"no connection to the copy on {rendezvous.address} within {GATHER_TIMEOUT_S:.0f} s: {why}"
    )


async def _listen(
    rendezvous: CopyRendezvous,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    nodes: int,
) -> asyncio.Server | None:
    for port in rendezvous.ports:
        with suppress(OSError):
            return await asyncio.start_server(serve, None, port, backlog=min(nodes + 16, 4096))
    return None


async def _receive(
    rendezvous: CopyRendezvous, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> NodeReport:
    """Return the report of one copy.

    Raises:
        OSError, EOFError, TimeoutError: the peer is not a copy, or stopped sending.
        msgspec.DecodeError: the copy has another version.
    """
    own_nonce = secrets.token_bytes(_PROOF_BYTES)
    async with asyncio.timeout(_STEP_TIMEOUT_S):
        writer.write(_HELLO + own_nonce)
        peer_nonce = await reader.readexactly(_PROOF_BYTES)
        writer.write(rendezvous.proof(b"first", own_nonce, peer_nonce))
        size = await reader.readexactly(_LENGTH_BYTES)
        digest = await reader.readexactly(_PROOF_BYTES)
        proof = await reader.readexactly(_PROOF_BYTES)
    expected = rendezvous.proof(b"other", own_nonce, peer_nonce, size, digest)
    _require(hmac.compare_digest(proof, expected))
    _require((length := int.from_bytes(size, "big")) <= _MAX_BYTES)
    async with asyncio.timeout(GATHER_TIMEOUT_S):
        payload = await reader.readexactly(length)
        _require(hashlib.sha256(payload).digest() == digest)
        report = msgspec.json.decode(payload, type=NodeReport)
        writer.write(b"+")
        await writer.drain()
    return report


async def _send(rendezvous: CopyRendezvous, port: int, payload: bytes) -> bool:
    """Return whether the first copy listens at this port and acknowledged the payload."""
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        reader, writer = await asyncio.open_connection(rendezvous.address, port)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            hello = await reader.readexactly(len(_HELLO) + _PROOF_BYTES)
            if not hello.startswith(_HELLO):
                return False
            peer_nonce, own_nonce = hello[len(_HELLO) :], secrets.token_bytes(_PROOF_BYTES)
            writer.write(own_nonce)
            proof = await reader.readexactly(_PROOF_BYTES)
            expected = rendezvous.proof(b"first", peer_nonce, own_nonce)
            if not hmac.compare_digest(proof, expected):
                return False
        size, digest = len(payload).to_bytes(_LENGTH_BYTES, "big"), hashlib.sha256(payload).digest()
        proof = rendezvous.proof(b"other", peer_nonce, own_nonce, size, digest)
        writer.write(size + digest + proof + payload)
        return await reader.readexactly(1) == b"+"
    finally:
        writer.close()


def _require(condition: bool) -> None:  # noqa: FBT001 - an assertion that always runs
    if not condition:
        raise ConnectionAbortedError("the peer is not a copy of this command")
