"""Copies find each other, look at each other and share one outcome; who is not there is not waited for in vain."""

import socket
import time

import pytest

from holdfast.facts.reach import Fate
from holdfast.facts.reach.meeting import ours, side_doors
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

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(noise)
        found = gathered(together([muster(port, 0, 2), muster(port, 1, 2)])[0])
    assert heard.result() == b"holdfast-check/1\n"
    assert len(found.present) == 2


def test_side_doors_follow_from_the_port_alone():
    assert side_doors(29500, (29500, 29510)) == side_doors(29500, (29500, 29510))
    assert 29500 not in side_doors(29500, (29500, 29500))


def test_no_secret_leaves_the_host():
    told = ours({"NCCL_DEBUG": "INFO", "HOLDFAST_TOKEN": "x", "AWS_SECRET_ACCESS_KEY": "y", "HOME": "/root"})
    assert told == {"NCCL_DEBUG": "INFO"}
