"""Brings what the copies of this command see on their nodes to the first of them, over one TCP connection each.

Both sides prove that they know the key before anything that was seen is sent: HMAC-SHA256 over a number of either side.
The first copy speaks first, so that a foreign service which a copy runs into gets nothing from it. Sizes and times are
bounded. Ports follow from the key; where one is taken, the next is tried, by both.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from holdfast.facts.remote import Seen
from holdfast.findings import Unknown

#: How long the first copy waits for the others, and they for it. Copies may start some seconds apart.
ANSWER_LIMIT_S = 20.0
_HELLO = b"holdfast-attach/1 "
_PROOF_BYTES = 32
_LENGTH_BYTES = 8
_MOST_BYTES = 64 << 20
_STEP_LIMIT_S = 5.0
_CONNECT_LIMIT_S = 1.5
_AGAIN_S = 0.3
#: Below the ports that systems give to outgoing connections (from 32768 on Linux).
_FIRST_PORT, _PORTS, _TRIES = 20_000, 12_000, 8


class Answer(msgspec.Struct, frozen=True):
    """What one node saw; ``seen`` is None where it saw no such job, and ``why`` says so."""

    node: int
    seen: Seen | None = None
    why: str = ""


class Meeting(msgspec.Struct, frozen=True):
    """Where the copies meet: the host of the first one, and what only they know (or can work out)."""

    address: str
    secret: bytes

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are tried, in this order."""
        digest = hashlib.sha256(b"port" + self.secret).digest()
        return tuple(_FIRST_PORT + int.from_bytes(digest[2 * at : 2 * at + 2], "big") % _PORTS for at in range(_TRIES))

    def proof(self, *parts: bytes) -> bytes:
        """What only somebody with the secret can say about ``parts``."""
        return hmac.digest(self.secret, b"\0".join(parts), "sha256")


async def collect(
    meeting: Meeting, nodes: int, own: Callable[[], Awaitable[Answer]]
) -> tuple[Mapping[int, Answer], str]:
    """The answers by node, the own one (of node 0) among them, and why none came from outside where that is known."""
    found: dict[int, Answer] = {}
    complete = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
            answer = await _receive(meeting, reader, writer)
            if 0 < answer.node < nodes:
                found.setdefault(answer.node, answer)
        writer.close()
        if len(found) == nodes - 1:
            complete.set()

    server = await _listen(meeting, serve, nodes)
    until = asyncio.get_running_loop().time() + ANSWER_LIMIT_S
    try:
        mine = await own()
        if server is not None and nodes > 1:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await complete.wait()
    finally:
        if server is not None:
            server.close()
    trouble = "" if server is not None else f"none of the ports {', '.join(map(str, meeting.ports))} is free"
    return {0: mine, **found}, trouble


async def deliver(meeting: Meeting, answer: Answer) -> Unknown | None:
    """Bring the answer to the first copy; why it could not be done, or None."""
    payload = msgspec.json.encode(answer)
    if len(payload) > _MOST_BYTES:
        payload = msgspec.json.encode(Answer(answer.node, why=f"what was seen is over {_MOST_BYTES >> 20} MiB"))
    why = "nothing answers there"
    with suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_LIMIT_S):
            while True:
                for port in meeting.ports:
                    try:
                        if await _send(meeting, port, payload):
                            return None
                    except (OSError, EOFError, TimeoutError) as error:
                        why = str(error) or why
                await asyncio.sleep(_AGAIN_S)
    return Unknown(f"no connection to the copy on {meeting.address} within {ANSWER_LIMIT_S:.0f} s: {why}")


async def _listen(
    meeting: Meeting, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], nodes: int
) -> asyncio.Server | None:
    for port in meeting.ports:
        with suppress(OSError):
            return await asyncio.start_server(serve, None, port, backlog=min(nodes + 16, 4096))
    return None


async def _receive(meeting: Meeting, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
    """The answer of one copy.

    Raises:
        OSError, EOFError, TimeoutError: it is not one of ours, or fell silent.
        msgspec.DecodeError: it is of another version.
    """
    mine = secrets.token_bytes(_PROOF_BYTES)
    async with asyncio.timeout(_STEP_LIMIT_S):
        writer.write(_HELLO + mine)
        theirs = await reader.readexactly(_PROOF_BYTES)
        writer.write(meeting.proof(b"first", mine, theirs))
        size, digest = await reader.readexactly(_LENGTH_BYTES), await reader.readexactly(_PROOF_BYTES)
        proof = await reader.readexactly(_PROOF_BYTES)
    _demand(hmac.compare_digest(proof, meeting.proof(b"other", mine, theirs, size, digest)))
    _demand((length := int.from_bytes(size, "big")) <= _MOST_BYTES)
    async with asyncio.timeout(ANSWER_LIMIT_S):
        payload = await reader.readexactly(length)
        _demand(hashlib.sha256(payload).digest() == digest)
        answer = msgspec.json.decode(payload, type=Answer)
        writer.write(b"+")
        await writer.drain()
    return answer


async def _send(meeting: Meeting, port: int, payload: bytes) -> bool:
    """True where the first copy is at this port and has taken the payload."""
    async with asyncio.timeout(_CONNECT_LIMIT_S):
        reader, writer = await asyncio.open_connection(meeting.address, port)
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            hello = await reader.readexactly(len(_HELLO) + _PROOF_BYTES)
            if not hello.startswith(_HELLO):
                return False
            theirs, mine = hello[len(_HELLO) :], secrets.token_bytes(_PROOF_BYTES)
            writer.write(mine)
            if not hmac.compare_digest(await reader.readexactly(_PROOF_BYTES), meeting.proof(b"first", theirs, mine)):
                return False
        size, digest = len(payload).to_bytes(_LENGTH_BYTES, "big"), hashlib.sha256(payload).digest()
        writer.write(size + digest + meeting.proof(b"other", theirs, mine, size, digest) + payload)
        return await reader.readexactly(1) == b"+"
    finally:
        writer.close()


def _demand(holds: bool) -> None:  # noqa: FBT001 - a condition is what it is about
    if not holds:
        raise ConnectionAbortedError("the other side is not a copy of this command")
