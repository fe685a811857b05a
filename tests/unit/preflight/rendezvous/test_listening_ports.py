"""Probe listeners and probes: real sockets, other rendezvous and foreign services."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.preflight.rendezvous import ConnectOutcome
from holdfast.preflight.rendezvous.listening_ports import ProbeListeners, measure_link, probe

WORD = "a" * 32


async def _with_listeners(go, number=3):
    listeners = await ProbeListeners.open([])
    listeners.accept(WORD, number)
    try:
        async with asyncio.timeout(60):
            return await go(listeners.port)
    finally:
        listeners.close()
        await asyncio.sleep(0.05)


def test_probe_and_measurement_of_a_listener():
    attempt = asyncio.run(_with_listeners(lambda port: probe(WORD, 3, "127.0.0.1", port)))
    assert (attempt.outcome, attempt.detail) == (ConnectOutcome.OPEN, "")
    link = asyncio.run(_with_listeners(lambda port: measure_link(WORD, 0, 3, "127.0.0.1", port)))
    assert (link.source, link.target, link.outcome) == (0, 3, ConnectOutcome.OPEN)
    assert link.forth > 0
    assert link.back > 0
    assert 0 < link.round_trip_s < 60


@pytest.mark.parametrize(
    ("word", "target", "detail"),
    [
        ("b" * 32, 3, "it closes the connection"),
        (WORD, 4, "peer 3 answers there instead of peer 4"),
    ],
)
def test_another_rendezvous_and_another_peer_are_detected(word, target, detail):
    attempt = asyncio.run(_with_listeners(lambda port: probe(word, target, "127.0.0.1", port)))
    assert attempt.outcome is ConnectOutcome.FOREIGN_SERVICE
    assert detail in attempt.detail


def test_a_foreign_service_is_reported():
    async def send_http(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def go():
        async with (
            asyncio.timeout(60),
            await asyncio.start_server(send_http, "127.0.0.1", 0) as server,
        ):
            port = server.sockets[0].getsockname()[1]
            results = (
                await probe(WORD, 3, "127.0.0.1", port),
                await measure_link(WORD, 0, 3, "127.0.0.1", port),
            )
            await asyncio.sleep(0.05)
            return results

    attempt, link = asyncio.run(go())
    assert (attempt.outcome, attempt.detail) == (
        ConnectOutcome.FOREIGN_SERVICE,
        "another service answers there",
    )
    assert (link.outcome, link.detail) == (
        ConnectOutcome.FOREIGN_SERVICE,
        "another service answers there",
    )


def test_an_oversized_request_is_rejected():
    async def go(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WORD.encode() + b"m" + b"\xff" * 4)
        response = await reader.read()
        writer.close()
        return response

    assert asyncio.run(_with_listeners(go)) == b""
