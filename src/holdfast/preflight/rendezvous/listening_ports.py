"""The ports on which a peer answers probes, and the probes.

A probe sends the secret word of its rendezvous, its kind and a size; the listener answers with its
number, so that another host with the same address (docker's bridge) is detected. Kind ``b"r"``: the
prober then sends that many bytes, and the listener one dot per sixteenth of them. Kind ``b"m"``:
echoes of one byte, then bytes as above, then as many in return.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from msgspec.structs import replace

from holdfast.preflight.rendezvous import ConnectAttempt, ConnectOutcome, LinkMeasurement
from holdfast.preflight.rendezvous.connect_attempts import (
    CONNECT_LIMIT_S,
    describe_tcp_state,
    try_connect,
)

#: Larger than any MTU, in steps that are larger than most.
LARGE_BYTES = 1 << 18
#: Bytes sent in each direction to measure a link.
MEASURE_BYTES = 4 << 20
#: A large message without progress for this long is stalled: a lost packet was retransmitted three
#: times.
STALL_LIMIT_S = 2.5
_ECHOES = 16
#: Repetitions of a link measurement, while all of them take less than this many seconds.
_MEASURES, _REPEAT_WITHIN_S = 3, 0.4
_STEPS = 16
_WORD = 32
_HEADER = _WORD + 1 + 4
_MAX_BYTES = 64 << 20
#: Larger numbers are not numbers of peers.
_MAX_PEERS = 1 << 20
_IDLE_LIMIT_S = 10.0
_CHUNK = 1 << 18


class ProbeListeners:
    """The listeners of one peer.

    ``port``, chosen by the system, and ``range_ports`` of the range.
    """

    def __init__(self, sockets: list[socket.socket], range_ports: tuple[int, ...]) -> None:
        self.port: int = sockets[0].getsockname()[1]
        self.range_ports = range_ports
        self._servers = list[asyncio.Server]()
        self._word, self._number = b"", 0

    @classmethod
    async def open(cls, ports: Iterable[int]) -> Self:
        """Listen on a port chosen by the system, and on those of ``ports`` that are free.

        Raises:
            OSError: this host does not permit listening.
        """
        sockets, range_ports = [create_listener(0)], []
        for port in ports:
            with suppress(OSError):
                sockets.append(create_listener(port))
                range_ports.append(port)
        listeners = cls(sockets, tuple(range_ports))
        for each in sockets:
            listeners._servers.append(await asyncio.start_server(listeners._serve, sock=each))
        return listeners

    def accept(self, word: str, number: int) -> None:
        """From now on, answer probes that send this word, with this number."""
        self._word, self._number = word.encode().ljust(_WORD)[:_WORD], number

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Handlers still running at the end are cancelled; asyncio would print a traceback.
        with suppress(OSError, EOFError, TimeoutError, asyncio.CancelledError):
            # asyncio sets this only for sockets created with proto=IPPROTO_TCP, unlike
            # create_server.
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_IDLE_LIMIT_S):
                header = await reader.readexactly(_HEADER)
            size = int.from_bytes(header[-4:], "big")
            if self._word and header[:_WORD] == self._word and size <= _MAX_BYTES:
                writer.write(self._number.to_bytes(4, "big"))
                await self._answer(header[_WORD : _WORD + 1], size, reader, writer)
        writer.close()

    async def _answer(
        self, kind: bytes, size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(_IDLE_LIMIT_S):
            if kind == b"m":
                for _ in range(_ECHOES):
                    writer.write(await reader.readexactly(1))
            await _receive_with_progress(size, reader, writer)
            if kind == b"m":
                await reader.readexactly(1)
                await _send_bytes(size, writer)
                await reader.read(1)


def create_listener(port: int) -> socket.socket:
    """Return a socket that listens on this port of all addresses, IPv4 and IPv6.

    Raises:
        OSError: the port is in use or not permitted.
    """
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512
            )
    return socket.create_server(("", port), backlog=512)


async def probe(
    word: str, target: int, address: str, port: int, *, large: bool = True
) -> ConnectAttempt:
    """Send a small message and, if ``large``, LARGE_BYTES to a peer's port; return the outcome."""
    stream, attempt = await try_connect(address, port)
    if stream is None:
        return attempt
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(sock=stream)
    try:
        size = LARGE_BYTES if large else 0
        outcome, detail = await _send_small(word, b"r", size, target, reader, writer)
        if outcome is ConnectOutcome.OPEN and large:
            elapsed_s = round(attempt.elapsed_s + time.monotonic() - begun, 4)
            attempt = replace(attempt, elapsed_s=elapsed_s)
            outcome, detail = await _send_large(LARGE_BYTES, reader, writer, stream)
    finally:
        writer.transport.abort()
    return replace(attempt, outcome=outcome, detail=detail)


async def measure_link(
    word: str, source: int, target: int, address: str, port: int
) -> LinkMeasurement:
    """Measure round trip and throughput of a link in both directions; the best of up to three runs.

    A busy CPU looks like a slow link once. A link that failed once counts as failed.
    """
    until = time.monotonic() + _REPEAT_WITHIN_S
    best = await _measure_once(word, source, target, address, port)
    for _ in range(_MEASURES - 1):
        if best.outcome is not ConnectOutcome.OPEN or time.monotonic() > until:
            break
        link = await _measure_once(word, source, target, address, port)
        best = link if link.outcome is not ConnectOutcome.OPEN else _best_of(best, link)
    return best


def _best_of(one: LinkMeasurement, other: LinkMeasurement) -> LinkMeasurement:
    return replace(
        one,
        round_trip_s=min(one.round_trip_s or 0.0, other.round_trip_s or 0.0),
        forth=max(one.forth or 0.0, other.forth or 0.0),
        back=max(one.back or 0.0, other.back or 0.0),
    )


async def _measure_once(
    word: str, source: int, target: int, address: str, port: int
) -> LinkMeasurement:
    link = LinkMeasurement(source=source, target=target)
    stream, attempt = await try_connect(address, port)
    if stream is None:
        return replace(link, outcome=attempt.outcome, detail=attempt.detail)
    reader, writer = await asyncio.open_connection(sock=stream)
    try:
        outcome, detail = await _send_small(word, b"m", MEASURE_BYTES, target, reader, writer)
        if outcome is not ConnectOutcome.OPEN:
            return replace(link, outcome=outcome, detail=detail)
        round_trip = min([await _echo(reader, writer) for _ in range(_ECHOES)])
        link = replace(link, round_trip_s=round_trip)
        begun = time.monotonic()
        outcome, detail = await _send_large(MEASURE_BYTES, reader, writer, stream)
        forth = MEASURE_BYTES / max(time.monotonic() - begun - round_trip / 2, 1e-6)
        if outcome is not ConnectOutcome.OPEN:
            return replace(link, outcome=outcome, detail=detail)
        begun = time.monotonic()
        writer.write(b"!")
        received = await _receive(MEASURE_BYTES, reader)
        back = received / max(time.monotonic() - begun - round_trip / 2, 1e-6)
        if received < MEASURE_BYTES:
            detail = f"{received} of {MEASURE_BYTES} bytes were returned"
            return replace(link, forth=forth, outcome=ConnectOutcome.STALLED, detail=detail)
        return replace(link, forth=forth, back=back)
    except (OSError, EOFError, TimeoutError) as error:
        return LinkMeasurement(
            source=source,
            target=target,
            outcome=ConnectOutcome.FAILED,
            detail=str(error) or "no response",
        )
    finally:
        writer.transport.abort()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    begun = time.perf_counter()
    writer.write(b".")
    async with asyncio.timeout(CONNECT_LIMIT_S):
        await reader.readexactly(1)
    return time.perf_counter() - begun


async def _send_small(
    word: str,
    kind: bytes,
    size: int,
    target: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> tuple[ConnectOutcome, str]:
    """Send the small message and check that the right peer answers."""
    foreign = ConnectOutcome.FOREIGN_SERVICE
    try:
        writer.write(word.encode().ljust(_WORD)[:_WORD] + kind + size.to_bytes(4, "big"))
        async with asyncio.timeout(CONNECT_LIMIT_S):
            number = int.from_bytes(await reader.readexactly(4), "big")
    except TimeoutError:
        return foreign, "it accepts the connection and does not answer"
    except (OSError, EOFError):
        return (
            foreign,
            "it closes the connection: another service, or another host, has this address",
        )
    if number >= _MAX_PEERS:
        return foreign, "another service answers there"
    if number != target:
        return foreign, f"peer {number} answers there instead of peer {target}"
    return ConnectOutcome.OPEN, ""


async def _send_large(
    size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: socket.socket
) -> tuple[ConnectOutcome, str]:
    sending = asyncio.ensure_future(_send_bytes(size, writer))
    steps = 0
    try:
        while steps < _STEPS:
            async with asyncio.timeout(STALL_LIMIT_S):
                steps += len(await _read_dots(reader))
    except TimeoutError:
        detail = f"{steps * size // _STEPS} of {size} bytes arrived; {describe_tcp_state(stream)}"
        return ConnectOutcome.STALLED, detail
    except (OSError, EOFError) as error:
        detail = f"{str(error) or 'it closed the connection'}; {describe_tcp_state(stream)}"
        return ConnectOutcome.FAILED, detail
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await sending
    return ConnectOutcome.OPEN, ""


async def _read_dots(reader: asyncio.StreamReader) -> bytes:
    if dots := await reader.read(_STEPS):
        return dots
    raise EOFError("it closed the connection")


async def _send_bytes(size: int, writer: asyncio.StreamWriter) -> None:
    chunk = bytes(_CHUNK)
    for begun in range(0, size, _CHUNK):
        writer.write(chunk[: size - begun])
        await writer.drain()


async def _receive_with_progress(
    size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Receive ``size`` bytes and acknowledge each sixteenth with a dot."""
    received = acknowledged = 0
    while received < size:
        data = await reader.read(min(_CHUNK, size - received))
        if not data:
            raise EOFError
        received += len(data)
        due = _STEPS * received // size
        if due > acknowledged:
            writer.write(b"." * (due - acknowledged))
            acknowledged = due


async def _receive(size: int, reader: asyncio.StreamReader) -> int:
    """Receive up to ``size`` bytes; return how many arrived before the stream stalled or ended."""
    received = 0
    while received < size:
        try:
            async with asyncio.timeout(STALL_LIMIT_S):
                data = await reader.read(min(_CHUNK, size - received))
        except TimeoutError:
            break
        if not data:
            break
        received += len(data)
    return received
