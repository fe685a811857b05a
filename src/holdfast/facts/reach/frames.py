"""Messages between copies of the command: bounded, and proved to come from one that holds the key.

Whoever leads speaks first, so that a foreign service gets nothing. Both sides prove the key by HMAC-SHA256 over a
number of either side; each message carries a proof over its number and content.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets

#: The number is that of this way of talking, and changes with it alone; versions of holdfast are told in messages.
HELLO = b"holdfast-check/1\n"
FAMILY = b"holdfast-check/"
_NONCE = 32
_PROOF = 16
_LENGTH = 4
MOST_BYTES = 32 << 20
STEP_LIMIT_S = 2.0


class NotOurs(ConnectionError):
    """The other side is another service."""


class OtherKey(ConnectionError):
    """The other side is a copy of this command, of another job, another token or another protocol."""


def key_of(port: int, token: str) -> bytes:
    """What the copies for one endpoint and one token have in common."""
    return hashlib.sha256(f"holdfast check\0{port}\0{token}".encode(errors="surrogateescape")).digest()


class Wire:
    """One connection after its handshake: whole messages in, whole messages out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, session: bytes, side: bytes) -> None:
        self._reader, self._writer, self._session = reader, writer, session
        self._mine, self._theirs = side, (b"L" if side == b"M" else b"M")
        self._sent = self._received = 0

    @property
    def peer(self) -> str:
        """The address of the other side."""
        found = self._writer.get_extra_info("peername")
        return plain(str(found[0])) if found else ""

    @property
    def local(self) -> str:
        """The own address of this connection."""
        found = self._writer.get_extra_info("sockname")
        return plain(str(found[0])) if found else ""

    async def send(self, payload: bytes) -> None:
        """Send one message.

        Raises:
            OSError: the connection is gone.
        """
        self._writer.write(self._head(self._mine, self._sent, payload) + payload)
        self._sent += 1
        await self._writer.drain()

    async def receive(self) -> bytes:
        """The next message.

        Raises:
            OSError, EOFError: the connection is gone, the message too large or not from the other side.
        """
        head = await self._reader.readexactly(_LENGTH + _PROOF)
        size = int.from_bytes(head[:_LENGTH], "big")
        if size > MOST_BYTES:
            raise ConnectionAbortedError(f"a message of {size} bytes, which is more than {MOST_BYTES}")
        payload = await self._reader.readexactly(size)
        if not hmac.compare_digest(head, self._head(self._theirs, self._received, payload)):
            raise ConnectionAbortedError("a message that was changed on its way")
        self._received += 1
        return payload

    def _head(self, side: bytes, number: int, payload: bytes) -> bytes:
        proof = hmac.new(self._session, side + number.to_bytes(8, "big") + payload, "sha256").digest()[:_PROOF]
        return len(payload).to_bytes(_LENGTH, "big") + proof

    def close(self) -> None:
        """Close it; what was sent still goes out."""
        self._writer.close()


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> Wire:
    """The handshake of the leading side.

    Raises:
        OSError, EOFError, TimeoutError: the other side is none of ours.
    """
    mine = secrets.token_bytes(_NONCE)
    async with asyncio.timeout(STEP_LIMIT_S):
        writer.write(HELLO + mine)
        theirs, proof = await reader.readexactly(_NONCE), await reader.readexactly(32)
        if not hmac.compare_digest(proof, hmac.digest(key, b"member" + mine + theirs, "sha256")):
            writer.write(bytes(32))
            raise ConnectionAbortedError("the other side has another key")
        writer.write(hmac.digest(key, b"leader" + mine + theirs, "sha256"))
    return Wire(reader, writer, hmac.digest(key, mine + theirs, "sha256"), b"L")


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> Wire:
    """The handshake of the side that connected.

    Raises:
        NotOurs: another service answers, or nothing speaks there.
        OtherKey: it is this command with another key or protocol.
    """
    try:
        async with asyncio.timeout(STEP_LIMIT_S):
            said = await reader.readexactly(len(HELLO))
    except TimeoutError as error:
        raise NotOurs("it accepts connections and says nothing that is ours") from error
    except (OSError, EOFError) as error:
        raise _stranger(getattr(error, "partial", b"")) from error
    if said != HELLO:
        raise _stranger(said)
    try:
        async with asyncio.timeout(STEP_LIMIT_S):
            theirs, mine = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
            writer.write(mine + hmac.digest(key, b"member" + theirs + mine, "sha256"))
            proof = await reader.readexactly(32)
    except (OSError, EOFError, TimeoutError) as error:
        raise OtherKey("it fell silent in the handshake") from error
    if not hmac.compare_digest(proof, hmac.digest(key, b"leader" + theirs + mine, "sha256")):
        raise OtherKey("it has another token, or is of another job")
    return Wire(reader, writer, hmac.digest(key, theirs + mine, "sha256"), b"M")


def _stranger(said: bytes) -> ConnectionError:
    if said.startswith(FAMILY):
        return OtherKey("it is of a version of holdfast that talks in another way")
    return NotOurs(f"it says {said[:32]!r}" if said else "it closes the connection without a word")


def plain(address: str) -> str:
    """An IPv4 address that came as ``::ffff:10.0.0.1``, as itself; a scope is taken away."""
    return address.removeprefix("::ffff:").split("%")[0]
