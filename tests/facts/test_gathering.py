"""Bringing what the nodes see to the first of them, over real connections on this machine."""

from __future__ import annotations

import asyncio
import secrets
import socket

import pytest

from holdfast.facts import gathering
from holdfast.facts.gathering import Answer, Meeting, collect, deliver


@pytest.fixture
def meeting():
    return Meeting("127.0.0.1", secrets.token_bytes(32))


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    monkeypatch.setattr(gathering, "ANSWER_LIMIT_S", 2.0)
    monkeypatch.setattr(gathering, "_STEP_LIMIT_S", 0.5)


async def seen_here():
    return Answer(0, why="nothing runs here")


async def together(meeting, nodes, *others):
    """What the first copy has in the end, and what each of the others was told."""
    (answers, trouble), *told = await asyncio.gather(collect(meeting, nodes, seen_here), *others)
    return {node: answer.why for node, answer in answers.items()}, trouble, told


def run(*what):
    return asyncio.run(together(*what))


def test_every_node_is_heard_whoever_comes_first(meeting):
    async def late():
        await asyncio.sleep(0.5)
        return await deliver(meeting, Answer(2, why="b" * (1 << 20)))

    answers, trouble, told = run(meeting, 3, late(), deliver(meeting, Answer(1, why="a")))
    assert answers == {0: "nothing runs here", 1: "a", 2: "b" * (1 << 20)}
    assert (trouble, told) == ("", [None, None])


def test_a_node_that_says_nothing_is_not_waited_for_long(meeting):
    answers, trouble, _ = run(meeting, 3, deliver(meeting, Answer(1, why="a")))
    assert (set(answers), trouble) == ({0, 1}, "")


def test_who_does_not_know_the_secret_is_neither_heard_nor_told(meeting):
    class Other(Meeting):
        ports = meeting.ports

    other = Other("127.0.0.1", secrets.token_bytes(32))
    answers, _, (told,) = run(meeting, 2, deliver(other, Answer(1, why="not one of us")))
    assert set(answers) == {0}
    assert "no connection to the copy on 127.0.0.1" in told.why


def test_strangers_do_not_disturb(meeting):
    async def stranger(says):
        await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", meeting.ports[0])
        writer.write(says)
        await reader.read()
        writer.close()

    async def ours():
        await asyncio.sleep(0.4)
        return await deliver(meeting, Answer(1, why="a"))

    answers, _, told = run(meeting, 2, stranger(b""), stranger(b"GET / HTTP/1.1\r\n\r\n" * 99), ours())
    assert (answers[1], told[-1]) == ("a", None)


def test_a_port_that_is_taken_is_passed_over_by_both(meeting):
    with socket.socket() as taken:
        taken.bind(("", meeting.ports[0]))
        taken.listen()
        answers, _, told = run(meeting, 2, deliver(meeting, Answer(1, why="a")))
    assert (answers[1], told) == ("a", [None])


def test_without_any_port_the_reason_is_said(meeting):
    class Taken(Meeting):
        ports = meeting.ports[:1]

    with socket.socket() as taken:
        taken.bind(("", meeting.ports[0]))
        taken.listen()
        answers, trouble, _ = run(Taken("127.0.0.1", meeting.secret), 2)
    assert set(answers) == {0}
    assert trouble == f"none of the ports {meeting.ports[0]} is free"


def test_a_host_whose_name_nobody_knows_is_said(meeting):
    told = asyncio.run(deliver(Meeting("no-such-host.invalid", meeting.secret), Answer(1)))
    assert "no connection to the copy on no-such-host.invalid within 2 s" in told.why
