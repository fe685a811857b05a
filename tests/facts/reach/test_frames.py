"""Messages are bounded, and only who holds the key is heard."""

import asyncio

import pytest

from holdfast.facts.reach.frames import HELLO, MOST_BYTES, NotOurs, OtherKey, greet, key_of, plain, welcome

KEY = key_of(29500, "secret")


def talk(serve, visit):
    """What the two sides of one connection return."""

    async def both():
        done = asyncio.get_running_loop().create_future()

        async def accept(reader, writer):
            try:
                done.set_result(await serve(reader, writer))
            except Exception as error:  # noqa: BLE001 - it is what the test looks at
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


def serves(key):
    async def serve(reader, writer):
        wire = await welcome(reader, writer, key)
        return await wire.receive()

    return serve


def visits(key, payload):
    async def visit(reader, writer):
        wire = await greet(reader, writer, key)
        await wire.send(payload)

    return visit


def test_a_message_arrives_whole():
    payload = bytes(range(256)) * 1000
    assert talk(serves(KEY), visits(KEY, payload))[0] == payload


def test_another_key_is_told_on_both_sides():
    there, here = talk(serves(KEY), visits(key_of(29500, "other"), b""))
    assert isinstance(there, ConnectionAbortedError)
    assert isinstance(here, OtherKey)


@pytest.mark.parametrize(
    ("greeting", "kind", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", NotOurs, "it says b'SSH-2.0"),
        (b"", NotOurs, "closes the connection"),
        (b"holdfast-check/9\n", OtherKey, "another way"),
        (HELLO, OtherKey, "silent"),
    ],
)
def test_another_service_hears_nothing_and_is_told_apart(greeting, kind, words):
    async def serve(reader, writer):
        writer.write(greeting)
        await writer.drain()
        writer.write_eof()
        return await reader.read()

    heard, error = talk(serve, visits(KEY, b"private"))
    assert isinstance(error, kind)
    assert words in str(error)
    assert b"private" not in (heard if isinstance(heard, bytes) else b"")


@pytest.mark.parametrize(
    "head",
    [
        (MOST_BYTES + 1).to_bytes(4, "big") + bytes(16),
        (4).to_bytes(4, "big") + bytes(16) + b"fake",
        b"\0\0",
    ],
)
def test_what_is_too_large_changed_or_cut_short_is_refused(head):
    async def visit(reader, writer):
        await greet(reader, writer, KEY)
        writer.write(head)
        writer.write_eof()

    error, _ = talk(serves(KEY), visit)
    assert isinstance(error, ConnectionAbortedError | EOFError)


def test_addresses_in_ipv6_clothes():
    assert [plain(each) for each in ("::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.1")] == [
        "10.0.0.1",
        "fe80::1",
        "10.0.0.1",
    ]
