"""Framing of messages between peers: bounded in size and authenticated with a shared key.

The leader sends first, so that a foreign service receives nothing. Both sides prove the key with
HMAC-SHA256 over a nonce of each side; every message carries a proof over its number and content.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets

#: The number is the protocol version; versions of holdfast are exchanged in messages.
HELLO = b"holdfast-check/1\n"
FAMILY = b"holdfast-check/"
_NONCE = 32
_PROOF = 16
_LENGTH = 4
MAX_BYTES = 32 << 20
STEP_LIMIT_S = 2.0


class ForeignService(ConnectionError):
    """The other side is another service."""


class KeyMismatch(ConnectionError):
    """The other side is a peer of another job, token or protocol version."""


def derive_key(port: int, token: str) -> bytes:
    """Return the key that the peers of one endpoint and token share."""
    return hashlib.sha256(
        f"holdfast check\0{port}\0{token}".encode(errors="surrogateescape")
    ).digest()


class PeerConnection:
    """An authenticated connection that sends and receives complete messages."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        session: bytes,
        side: bytes,
    ) -> None:
        self._reader, self._writer, self._session = reader, writer, session
        self._own_side, self._other_side = side, (b"L" if side == b"M" else b"M")
        self._sent = self._received = 0

    @property
    def peer_address(self) -> str:
        """Return the address of the other side."""
        name = self._writer.get_extra_info("peername")
        return normalize_address(str(name[0])) if name else ""

    async def send(self, payload: bytes) -> None:
        """Send one message.

        Raises:
            OSError: the connection is gone.
        """
        self._writer.write(self._header(self._own_side, self._sent, payload) + payload)
        self._sent += 1
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the next message.

        Raises:
            OSError, EOFError: the connection is gone, or the message is too large or not authentic.
        """
        header = await self._reader.readexactly(_LENGTH + _PROOF)
        size = int.from_bytes(header[:_LENGTH], "big")
        if size > MAX_BYTES:
            raise ConnectionAbortedError(f"message of {size} bytes, larger than {MAX_BYTES}")
        payload = await self._reader.readexactly(size)
        if not hmac.compare_digest(header, self._header(self._other_side, self._received, payload)):
            raise ConnectionAbortedError("a message was modified in transit")
        self._received += 1
        return payload

    def _header(self, side: bytes, number: int, payload: bytes) -> bytes:
        proof = hmac.new(
            self._session, side + number.to_bytes(8, "big") + payload, "sha256"
        ).digest()[:_PROOF]
        return len(payload).to_bytes(_LENGTH, "big") + proof

    def close(self) -> None:
        """Close the connection; buffered data is still sent."""
        self._writer.close()


async def accept_handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
) -> PeerConnection:
    """Perform the leader's side of the handshake.

    Raises:
        OSError, EOFError, TimeoutError: the other side is not a peer with this key.
    """
    own = secrets.token_bytes(_NONCE)
    async with asyncio.timeout(STEP_LIMIT_S):
        writer.write(HELLO + own)
        other, proof = await reader.readexactly(_NONCE), await reader.readexactly(32)
        if not hmac.compare_digest(proof, hmac.digest(key, b"member" + own + other, "sha256")):
            writer.write(bytes(32))
            raise ConnectionAbortedError("the other side has another key")
        writer.write(hmac.digest(key, b"leader" + own + other, "sha256"))
    return PeerConnection(reader, writer, hmac.digest(key, own + other, "sha256"), b"L")


async def start_handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes
) -> PeerConnection:
    """Perform the handshake of the side that connected.

    Raises:
        ForeignService: another service answers, or nothing is sent.
        KeyMismatch: a peer with another key or protocol answers.
    """
    try:
        async with asyncio.timeout(STEP_LIMIT_S):
            greeting = await reader.readexactly(len(HELLO))
    except TimeoutError as error:
        raise ForeignService("it accepts connections but sends no holdfast greeting") from error
    except (OSError, EOFError) as error:
        raise _greeting_error(getattr(error, "partial", b"")) from error
    if greeting != HELLO:
        raise _greeting_error(greeting)
    try:
        async with asyncio.timeout(STEP_LIMIT_S):
            other, own = await reader.readexactly(_NONCE), secrets.token_bytes(_NONCE)
            writer.write(own + hmac.digest(key, b"member" + other + own, "sha256"))
            proof = await reader.readexactly(32)
    except (OSError, EOFError, TimeoutError) as error:
        raise KeyMismatch("it stopped responding during the handshake") from error
    if not hmac.compare_digest(proof, hmac.digest(key, b"leader" + other + own, "sha256")):
        raise KeyMismatch("it has another token, or belongs to another job")
    return PeerConnection(reader, writer, hmac.digest(key, other + own, "sha256"), b"M")


def _greeting_error(greeting: bytes) -> ConnectionError:
    if greeting.startswith(FAMILY):
        return KeyMismatch("it runs a version of holdfast with another protocol")
    return ForeignService(
        f"it sends {greeting[:32]!r}" if greeting else "it closes the connection without a greeting"
    )


def normalize_address(address: str) -> str:
    """Return an IPv4-mapped address (``::ffff:10.0.0.1``) as IPv4; the scope is removed."""
    return address.removeprefix("::ffff:").split("%")[0]
