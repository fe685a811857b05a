"""Copies find each other, look at each other and share one outcome; who is not there is not waited for in vain."""

import asyncio
import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from holdfast.facts.reach import Attempt, Crossing, Fate, Link, Naming, NotUnderstood, Stranger
from holdfast.facts.reach.connecting import connect
from holdfast.facts.reach.frames import greet, key_of, welcome
from holdfast.facts.reach.meeting import ours, side_doors
from holdfast.facts.reach.messages import Join, Measured, Met, MyClock, Welcome, encode, from_leader
from holdfast.findings import Unknown
from tests.facts.reach.copies import gathered, muster, together
from tests.ports import free_port


def test_copies_meet_measure_and_share_one_outcome():
    port = free_port()
    outcomes = together([muster(port, node, 3) for node in range(3)], clocks=[0.0, 3.0])
    assert len({outcome.content for outcome in outcomes}) == 1
    found = gathered(outcomes[2])
    assert [each.copy.node for each in found.present] == [0, 1, 2]
    assert [each.leads for each in found.present] == [True, False, False]
    assert (found.crossings, found.lost, found.rounds) == ((), {}, 3)
    assert found.tried >= 6
    assert {(min(link.source, link.target), max(link.source, link.target)) for link in found.links} == {
        (0, 1), (0, 2), (1, 2)
    }  # fmt: skip
    assert all(link.fate is Fate.OPEN and link.forth > 0 and link.back > 0 for link in found.links)
    assert [found.reports[number].environ["NCCL_DEBUG"] for number in range(3)] == ["0", "1", "2"]
    ahead = {clock.number: clock for clock in found.clocks}
    assert abs(ahead[1].ahead_s - 3) < max(ahead[1].within_s, 1e-3)
    assert abs(ahead[2].ahead_s) < max(ahead[2].within_s, 1e-3)


def test_who_owns_the_address_leads_where_no_rank_is_told():
    port = free_port()
    found = gathered(together([muster(port, None, 2), muster(port, None, 2)])[0])
    assert len(found.present) == 2


def test_a_copy_that_never_comes_is_waited_for_no_longer_than_was_said():
    begun = time.monotonic()
    found = gathered(together([muster(free_port(), 0, 2, wait_s=1)])[0])
    assert [each.copy.node for each in found.present] == [0]
    assert found.waited_s <= 1.1
    assert time.monotonic() - begun < 3


def test_who_waits_for_nobody_still_has_itself():
    found = gathered(together([muster(free_port(), 0, 2, wait_s=0)])[0])
    assert [each.copy.node for each in found.present] == [0]


@pytest.mark.parametrize(("second", "nodes"), [(1, 3), (0, 2)])
def test_copies_that_contradict_each_other_are_told_at_once(second, nodes):
    port = free_port()
    begun = time.monotonic()
    outcomes = together([muster(port, 0, 2, wait_s=20), muster(port, second, nodes, wait_s=20)])
    assert len({outcome.content for outcome in outcomes}) == 1
    assert sorted((each.copy.node, each.copy.nodes) for each in gathered(outcomes[0]).present) == [
        (0, 2),
        (second, nodes),
    ]
    assert time.monotonic() - begun < 10


def test_copies_with_other_tokens_do_not_meet():
    port = free_port()
    first, second = together([muster(port, 0, 2, wait_s=1, token="a"), muster(port, 1, 2, wait_s=1, token="b")])
    assert len(gathered(first).present) == 1
    assert isinstance(second.content, Unknown)
    assert second.approach.main.fate is Fate.STRANGER


def test_a_port_that_is_taken_is_told_to_both():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        outcomes = together([muster(port, 0, 2, wait_s=8), muster(port, 1, 2, wait_s=8)])
    found = gathered(outcomes[1])
    assert outcomes[0].content == outcomes[1].content
    leader, other = found.present
    assert "in use" in leader.approach.bound
    assert other.approach.main.fate is Fate.FOREIGN
    assert any(side.fate is Fate.OPEN for side in other.approach.side)


def test_a_name_that_nobody_knows():
    (alone,) = together([muster(free_port(), 1, 2, host="no-such-host.invalid", wait_s=0.5)])
    assert isinstance(alone.content, Unknown)
    assert isinstance(alone.approach.addresses, Unknown)


def test_what_connects_and_is_no_copy_disturbs_nobody():
    port = free_port()

    def noise():
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as stream:
                    stream.sendall(b"\xff" * 4096)
                    return stream.recv(17)
            except ConnectionRefusedError:
                time.sleep(0.02)
        return b""

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(noise)
        found = gathered(together([muster(port, 0, 2), muster(port, 1, 2)])[0])
    assert heard.result() == b"holdfast-check/1\n"
    assert len(found.present) == 2


async def _wire_to(port):
    """A connection to whoever leads, as soon as there is one, by a copy that is made by hand."""
    while True:
        stream, _ = await connect("127.0.0.1", port)
        if stream is not None:
            reader, writer = await asyncio.open_connection(sock=stream)
            wire = await greet(reader, writer, key_of(port, ""))
            assert isinstance(from_leader.decode(await wire.receive()), Welcome)
            return wire
        await asyncio.sleep(0.05)


def _beside(port, copy, *musters):
    """What was gathered by copies that are as they should be, beside one that is made by hand."""

    async def limited():
        async with asyncio.timeout(30):
            wire = await _wire_to(port)
            await copy(wire)
            wire.close()
            await asyncio.sleep(0.05)  # the loop's next turns let go of it

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(asyncio.run, limited())
        outcomes = together([*musters])
        done.result()
    return gathered(outcomes[0])


def test_a_copy_of_a_version_that_talks_otherwise_is_named_and_not_waited_for():
    port = free_port()

    async def comes(wire):
        said = {"type": "join", "copy": {"version": "9.9", "host": "far", "node": 1, "endpoint": 7}, "new": []}
        await wire.send(msgspec.json.encode(said))
        with contextlib.suppress(OSError, EOFError):  # it is not talked to any further
            while True:
                await wire.receive()

    begun = time.monotonic()
    found = _beside(port, comes, muster(port, 0, 2, wait_s=20))
    assert found.strangers == (Stranger("9.9", "far", 1),)
    assert [each.copy.node for each in found.present] == [0]
    assert time.monotonic() - begun < 15


def test_who_leads_with_a_version_that_talks_otherwise_is_told_apart_from_a_lost_connection():
    port = free_port()

    async def serve(reader, writer):
        wire = await welcome(reader, writer, key_of(port, ""))
        await wire.send(encode(Welcome("another", "9.9")))
        await wire.receive()
        await wire.send(b'{"type": "novelty"}')
        wire.close()

    async def leads():
        async with asyncio.timeout(30), await asyncio.start_server(serve, "127.0.0.1", port):
            return await asyncio.to_thread(together, [muster(port, 1, 2)])

    (outcome,) = asyncio.run(leads())
    assert isinstance(outcome.content, NotUnderstood)
    assert (outcome.content.version, outcome.version) == ("9.9", "9.9")
    assert "novelty" in outcome.content.why


def test_what_a_copy_tells_of_others_than_itself_does_not_count():
    port = free_port()
    joined = []
    other = gathered(together([muster(free_port(), 0, 2, wait_s=0)])[0]).present[0]

    async def lies(wire):
        known = msgspec.structs.replace(other.copy, key="liar", node=1)
        await wire.send(encode(Join(known, other.approach, 9, ())))
        attempt = Attempt(address="10.0.0.9", port=1, fate=Fate.SILENT)
        while True:
            message = from_leader.decode(await wire.receive())
            joined.append(type(message).__name__)
            if joined[-1] == "Outcome":
                return
            if joined[-1] == "TellClock":
                await wire.send(encode(MyClock(time.time())))
            if joined[-1] == "Meet":
                lied = [Crossing(source=a, target=b, purpose="data", attempt=attempt) for a, b in
                        ((0, 1), (1, 77), (-1, 0), (1, -1), (1, 0))]  # fmt: skip
                named = (Naming(source=1, target=5, name="x", addresses=()),)
                await wire.send(encode(Met(tuple(lied), 5, named)))
            if joined[-1] == "Measure":
                await wire.send(encode(Measured(Link(source=5, target=99, forth=1.0, back=1.0))))

    found = _beside(port, lies, muster(port, 0, 2, wait_s=20))
    assert "Outcome" in joined
    assert [(each.source, each.target) for each in found.crossings if each.attempt.address == "10.0.0.9"] == [(1, 0)]
    assert all(each.source in (0, 1) and each.target in (0, 1) for each in found.crossings)
    assert found.links == ()
    assert found.namings == () or {each.source for each in found.namings} == {0}


def test_side_doors_follow_from_the_port_alone():
    assert side_doors(29500, (29500, 29510)) == side_doors(29500, (29500, 29510))
    assert 29500 not in side_doors(29500, (29500, 29500))


def test_no_secret_leaves_the_host():
    told = ours({"NCCL_DEBUG": "INFO", "HOLDFAST_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "HOME": "/root"})
    assert told == {"NCCL_DEBUG": "INFO"}
