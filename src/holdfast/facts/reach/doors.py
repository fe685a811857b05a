"""The ports at which a copy answers probes of the others, and the probes.

A probe says the word of its meeting, what it wants and a size; the door answers with its number, so that nobody takes
another host that has the same address (docker's bridge) for the one that was meant. Then, ``b"r"``: the prober sends
that many bytes, and the door a dot for each sixteenth of them. ``b"m"``: echoes of one byte, then bytes as before, then
as many back.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

from msgspec.structs import replace

from holdfast.facts.reach import Attempt, Fate, Link
from holdfast.facts.reach.connecting import CONNECT_LIMIT_S, connect, tcp_state

#: Larger than any MTU, in steps that are larger than most.
LARGE_BYTES = 1 << 18
#: What a link is measured with, in both directions.
MEASURE_BYTES = 4 << 20
#: A large message of which nothing arrives for so long is stalled: by then a lost packet was sent again three times.
STALL_LIMIT_S = 2.5
_ECHOES = 16
#: A link is measured so often, if it was measured the time before within so many seconds.
_MEASURES, _AGAIN_WITHIN_S = 3, 0.15
_STEPS = 16
_WORD = 32
_HEADER = _WORD + 1 + 4
_MOST_BYTES = 64 << 20
#: More copies than meet anywhere.
_MOST_COPIES = 1 << 20
_IDLE_LIMIT_S = 10.0
_CHUNK = 1 << 18


class Doors:
    """The listeners of one copy. ``door`` is a port that the system chose, ``ranged`` those it got of the range."""

    def __init__(self, sockets: list[socket.socket], ranged: tuple[int, ...]) -> None:
        self.door: int = sockets[0].getsockname()[1]
        self.ranged = ranged
        self._sockets, self._servers = sockets, list[asyncio.Server]()
        self._word, self._number = b"", 0

    @classmethod
    async def open(cls, wanted: Iterable[int]) -> Self:
        """Listen at a port that the system chooses, and at those of ``wanted`` that are free.

        Raises:
            OSError: this host does not let us listen.
        """
        sockets, ranged = [listener(0)], []
        for port in wanted:
            with suppress(OSError):
                sockets.append(listener(port))
                ranged.append(port)
        doors = cls(sockets, tuple(ranged))
        for each in sockets:
            doors._servers.append(await asyncio.start_server(doors._serve, sock=each))
        return doors

    def expect(self, word: str, number: int) -> None:
        """From now on answer those who know the word, as this number."""
        self._word, self._number = word.encode().ljust(_WORD)[:_WORD], number

    def close(self) -> None:
        """Listen no longer."""
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # What is still at work when the meeting ends is cancelled, of which asyncio would print the traceback.
        with suppress(OSError, EOFError, TimeoutError, asyncio.CancelledError):
            # asyncio sets it only where the listener's socket was made for TCP by number, which create_server does not.
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(_IDLE_LIMIT_S):
                header = await reader.readexactly(_HEADER)
            size = int.from_bytes(header[-4:], "big")
            if self._word and header[:_WORD] == self._word and size <= _MOST_BYTES:
                writer.write(self._number.to_bytes(4, "big"))
                await self._answer(header[_WORD : _WORD + 1], size, reader, writer)
        writer.close()

    async def _answer(self, kind: bytes, size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_IDLE_LIMIT_S):
            if kind == b"m":
                for _ in range(_ECHOES):
                    writer.write(await reader.readexactly(1))
            await _take(size, reader, writer)
            if kind == b"m":
                await reader.readexactly(1)
                await _give(size, writer)
                await reader.read(1)


def listener(port: int) -> socket.socket:
    """A socket that listens at this port of all addresses, IPv4 and IPv6.

    Raises:
        OSError: the port is taken, or not allowed.
    """
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    return socket.create_server(("", port), backlog=512)


async def reach(word: str, target: int, address: str, port: int, *, large: bool = True) -> Attempt:
    """Go to a door with a small message and, if ``large``, with LARGE_BYTES; how that ended."""
    stream, attempt = await connect(address, port)
    if stream is None:
        return attempt
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(sock=stream)
    try:
        fate, detail = await _small(word, b"r", LARGE_BYTES if large else 0, target, reader, writer)
        if fate is Fate.OPEN and large:
            attempt = replace(attempt, elapsed_s=round(attempt.elapsed_s + time.monotonic() - begun, 4))
            fate, detail = await _large(LARGE_BYTES, reader, writer, stream)
    finally:
        writer.transport.abort()
    return replace(attempt, fate=fate, detail=detail)


async def measure(word: str, source: int, target: int, address: str, port: int) -> Link:
    """Round trip and throughput of the link to a door, in both directions: the best of three where that is quick.

    A processor that was busy with something else looks like a slow link once; a link that failed once has failed.
    """
    until = time.monotonic() + _AGAIN_WITHIN_S
    best = await _measure(word, source, target, address, port)
    for _ in range(_MEASURES - 1):
        if best.fate is not Fate.OPEN or time.monotonic() > until:
            break
        found = await _measure(word, source, target, address, port)
        best = found if found.fate is not Fate.OPEN else _better(best, found)
    return best


def _better(one: Link, other: Link) -> Link:
    def most(*speeds: float | None) -> float:
        return max(speed or 0.0 for speed in speeds)

    round_trip = min(one.round_trip_s or 0.0, other.round_trip_s or 0.0)
    return replace(one, round_trip_s=round_trip, forth=most(one.forth, other.forth), back=most(one.back, other.back))


async def _measure(word: str, source: int, target: int, address: str, port: int) -> Link:
    stream, attempt = await connect(address, port)
    if stream is None:
        return Link(source=source, target=target, fate=attempt.fate, detail=attempt.detail)
    reader, writer = await asyncio.open_connection(sock=stream)
    try:
        fate, detail = await _small(word, b"m", MEASURE_BYTES, target, reader, writer)
        if fate is not Fate.OPEN:
            return Link(source=source, target=target, fate=fate, detail=detail)
        round_trip = min([await _echo(reader, writer) for _ in range(_ECHOES)])
        begun = time.monotonic()
        fate, detail = await _large(MEASURE_BYTES, reader, writer, stream)
        forth = MEASURE_BYTES / max(time.monotonic() - begun - round_trip / 2, 1e-6)
        if fate is not Fate.OPEN:
            return Link(source=source, target=target, round_trip_s=round_trip, fate=fate, detail=detail)
        begun = time.monotonic()
        writer.write(b"!")
        arrived = await _arrived(MEASURE_BYTES, reader)
        back = arrived / max(time.monotonic() - begun - round_trip / 2, 1e-6)
        stalled = arrived < MEASURE_BYTES
        return Link(
            source=source, target=target, round_trip_s=round_trip, forth=forth, back=None if stalled else back,
            fate=Fate.STALLED if stalled else Fate.OPEN,
            detail=f"{arrived} of {MEASURE_BYTES} bytes came back" if stalled else "",
        )  # fmt: skip
    except (OSError, EOFError, TimeoutError) as error:
        return Link(source=source, target=target, fate=Fate.FAILED, detail=str(error) or "it fell silent")
    finally:
        writer.transport.abort()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> float:
    begun = time.perf_counter()
    writer.write(b".")
    async with asyncio.timeout(CONNECT_LIMIT_S):
        await reader.readexactly(1)
    return time.perf_counter() - begun


async def _small(
    word: str, kind: bytes, size: int, target: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[Fate, str]:
    """The small message, and who answers it."""
    try:
        writer.write(word.encode().ljust(_WORD)[:_WORD] + kind + size.to_bytes(4, "big"))
        async with asyncio.timeout(CONNECT_LIMIT_S):
            number = int.from_bytes(await reader.readexactly(4), "big")
    except TimeoutError:
        return Fate.FOREIGN, "it accepts the connection and does not answer"
    except (OSError, EOFError):
        return (
            Fate.FOREIGN,
            "it closes the connection: another service, or another host, has this address",
        )
    if number >= _MOST_COPIES:  # these bytes were no number
        return Fate.FOREIGN, "another service answers there"
    if number != target:
        return Fate.FOREIGN, f"copy {number} of the meeting answers there, where {target} was meant"
    return Fate.OPEN, ""


async def _large(
    size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: socket.socket
) -> tuple[Fate, str]:
    sending = asyncio.ensure_future(_give(size, writer))
    steps = 0
    try:
        while steps < _STEPS:
            async with asyncio.timeout(STALL_LIMIT_S):
                steps += len(await _some(reader))
    except TimeoutError:
        return Fate.STALLED, f"{steps * size // _STEPS} of {size} bytes arrived; {tcp_state(stream)}"
    except (OSError, EOFError) as error:
        return Fate.FAILED, f"{str(error) or 'it closed the connection'}; {tcp_state(stream)}"
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await sending
    return Fate.OPEN, ""


async def _some(reader: asyncio.StreamReader) -> bytes:
    if got := await reader.read(_STEPS):
        return got
    raise EOFError("it closed the connection")


async def _give(size: int, writer: asyncio.StreamWriter) -> None:
    chunk = bytes(_CHUNK)
    for begun in range(0, size, _CHUNK):
        writer.write(chunk[: size - begun])
        await writer.drain()


async def _take(size: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read so many bytes, and say so sixteen times."""
    taken = said = 0
    while taken < size:
        got = await reader.read(min(_CHUNK, size - taken))
        if not got:
            raise EOFError
        taken += len(got)
        due = _STEPS * taken // size
        if due > said:
            writer.write(b"." * (due - said))
            said = due


async def _arrived(size: int, reader: asyncio.StreamReader) -> int:
    taken = 0
    while taken < size:
        try:
            async with asyncio.timeout(STALL_LIMIT_S):
                got = await reader.read(min(_CHUNK, size - taken))
        except TimeoutError:
            break
        if not got:
            break
        taken += len(got)
    return taken
