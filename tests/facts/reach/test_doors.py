"""Doors and those who try them: real sockets, and services that are none of ours."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.facts.reach import Fate
from holdfast.facts.reach.doors import Doors, measure, reach

WORD = "a" * 32


async def _at_doors(go, number=3):
    doors = await Doors.open([])
    doors.expect(WORD, number)
    try:
        async with asyncio.timeout(60):
            return await go(doors.door)
    finally:
        doors.close()
        await asyncio.sleep(0.05)


def test_who_knows_the_word_gets_in_with_large_messages_and_is_measured():
    attempt = asyncio.run(_at_doors(lambda port: reach(WORD, 3, "127.0.0.1", port)))
    assert (attempt.fate, attempt.detail) == (Fate.OPEN, "")
    link = asyncio.run(_at_doors(lambda port: measure(WORD, 0, 3, "127.0.0.1", port)))
    assert (link.source, link.target, link.fate) == (0, 3, Fate.OPEN)
    assert link.forth > 0
    assert link.back > 0
    assert 0 < link.round_trip_s < 60


@pytest.mark.parametrize(
    ("word", "target", "detail"),
    [("b" * 32, 3, "it closes the connection"), (WORD, 4, "copy 3 of the meeting answers there, where 4 was meant")],
)
def test_another_meeting_and_another_copy_are_not_taken_for_the_one_that_was_meant(word, target, detail):
    attempt = asyncio.run(_at_doors(lambda port: reach(word, target, "127.0.0.1", port)))
    assert attempt.fate is Fate.FOREIGN
    assert detail in attempt.detail


def test_a_service_that_is_none_of_ours_is_told_as_such():
    async def says_http(_reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def go():
        async with asyncio.timeout(60), await asyncio.start_server(says_http, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            found = await reach(WORD, 3, "127.0.0.1", port), await measure(WORD, 0, 3, "127.0.0.1", port)
            await asyncio.sleep(0.05)
            return found

    attempt, link = asyncio.run(go())
    assert (attempt.fate, attempt.detail) == (Fate.FOREIGN, "another service answers there")
    assert (link.fate, link.detail) == (Fate.FOREIGN, "another service answers there")


def test_who_wants_more_than_a_door_gives_is_sent_away():
    async def go(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(WORD.encode() + b"m" + b"\xff" * 4)
        said = await reader.read()
        writer.close()
        return said

    assert asyncio.run(_at_doors(go)) == b""
