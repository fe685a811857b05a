"""Messages are bounded in size, and only holders of the key are accepted."""

import asyncio

import pytest

from holdfast.preflight.rendezvous.frames import (
    HELLO,
    MAX_BYTES,
    ForeignService,
    KeyMismatch,
    accept_handshake,
    derive_key,
    normalize_address,
    start_handshake,
)

KEY = derive_key(29500, "secret")


def talk(serve, visit):
    """Return the results of both sides of one connection."""

    async def both():
        done = asyncio.get_running_loop().create_future()

        async def accept(reader, writer):
            try:
                done.set_result(await serve(reader, writer))
            except Exception as error:  # noqa: BLE001 - the test inspects it
                done.set_exception(error)
            writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())

        async def call():
            try:
                return await visit(reader, writer)
            finally:
                writer.close()

        try:
            async with asyncio.timeout(20):
                return await asyncio.gather(done, call(), return_exceptions=True)
        finally:
            server.close()
            await asyncio.sleep(0.01)

    return asyncio.run(both())


def receive_with(key):
    async def serve(reader, writer):
        connection = await accept_handshake(reader, writer, key)
        return await connection.receive()

    return serve


def send_with(key, payload):
    async def visit(reader, writer):
        connection = await start_handshake(reader, writer, key)
        await connection.send(payload)

    return visit


def test_a_large_message_arrives():
    payload = bytes(range(256)) * 1000
    assert talk(receive_with(KEY), send_with(KEY, payload))[0] == payload


def test_another_key_is_detected_on_both_sides():
    server_error, client_error = talk(receive_with(KEY), send_with(derive_key(29500, "other"), b""))
    assert isinstance(server_error, ConnectionAbortedError)
    assert isinstance(client_error, KeyMismatch)


@pytest.mark.parametrize(
    ("greeting", "kind", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", ForeignService, "it sends b'SSH-2.0"),
        (b"", ForeignService, "closes the connection"),
        (b"holdfast-check/9\n", KeyMismatch, "another protocol"),
        (HELLO, KeyMismatch, "stopped responding"),
    ],
)
def test_another_service_gets_nothing_and_is_identified(greeting, kind, words):
    async def serve(reader, writer):
        writer.write(greeting)
        await writer.drain()
        writer.write_eof()
        return await reader.read()

    received, error = talk(serve, send_with(KEY, b"private"))
    assert isinstance(error, kind)
    assert words in str(error)
    assert b"private" not in (received if isinstance(received, bytes) else b"")


@pytest.mark.parametrize(
    "head",
    [
        (MAX_BYTES + 1).to_bytes(4, "big") + bytes(16),
        (4).to_bytes(4, "big") + bytes(16) + b"fake",
        b"\0\0",
    ],
)
def test_oversized_modified_or_truncated_messages_are_rejected(head):
    async def visit(reader, writer):
        await start_handshake(reader, writer, KEY)
        writer.write(head)
        writer.write_eof()

    error, _ = talk(receive_with(KEY), visit)
    assert isinstance(error, ConnectionAbortedError | EOFError)


def test_ipv4_mapped_addresses():
    assert [
        normalize_address(each) for each in ("::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.1")
    ] == [
        "10.0.0.1",
        "fe80::1",
        "10.0.0.1",
    ]
