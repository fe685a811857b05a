"""Hosts, directions and links that failing pairs have in common."""

import random
import time

import pytest

from holdfast.preflight.rendezvous_rules.blame import find_suspects


def test_one_link_in_one_or_both_directions():
    assert [each.pairs for each in find_suspects([(0, 1)], 8)] == [((0, 1),)]
    assert [each.pairs for each in find_suspects([(0, 1), (1, 0)], 2)] == [((0, 1), (1, 0))]


def test_an_unreachable_host_and_one_that_reaches_none():
    (into,) = find_suspects([(source, 3) for source in range(8) if source != 3], 8)
    assert (into.host, into.inward, into.outward) == (3, True, False)
    (out,) = find_suspects([(3, target) for target in range(8) if target != 3], 8)
    assert (out.host, out.inward, out.outward) == (3, False, True)


def test_two_bad_hosts_and_a_link():
    pairs = {(a, b) for a in range(8) for b in range(8) if a != b and {a, b} & {2, 5}} | {(0, 1)}
    suspects = find_suspects(pairs, 8)
    assert {each.host for each in suspects} == {2, 5, None}
    assert {pair for each in suspects for pair in each.pairs} == pairs


def test_every_failing_pair_is_listed_exactly_once():
    chance = random.Random(1)
    for _ in range(50):
        size = chance.randint(2, 9)
        pairs = {
            (a, b) for a in range(size) for b in range(size) if a != b and chance.random() < 0.3
        }
        listed = [pair for each in find_suspects(pairs, size) for pair in each.pairs]
        assert sorted(listed) == sorted(pairs)


def test_widespread_failures_blame_no_host():
    pairs = {(a, b) for a in range(6) for b in range(6) if a != b} - {(2, 3)}
    (suspect,) = find_suspects(pairs, 6)
    assert (suspect.widespread, suspect.host, suspect.host_count, set(suspect.pairs)) == (
        True,
        None,
        6,
        pairs,
    )


def test_two_unreachable_hosts_of_four():
    pairs = {(a, b) for a in range(4) for b in (1, 2) if a != b}
    assert [(each.host, each.inward, each.widespread) for each in find_suspects(pairs, 4)] == [
        (1, True, False),
        (2, True, False),
    ]


def test_many_links_are_one_suspect():
    pairs = {(number, number + 1) for number in range(0, 400, 2)}
    (suspect,) = find_suspects(pairs, 400)
    assert (suspect.widespread, suspect.host_count) == (True, 400)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3])
def test_hundreds_of_failing_hosts_are_fast(share):
    """Each blamed host costs its own pairs only, not all pairs."""
    chance, size = random.Random(2), 512
    pairs = {(a, b) for a in range(size) for b in range(size) if a != b and chance.random() < share}
    begun = time.process_time()
    listed = [pair for each in find_suspects(pairs, size) for pair in each.pairs]
    assert time.process_time() - begun < 10
    assert len(listed) == len(pairs) == len(set(listed))


def test_a_thousand_hosts_are_fast():
    size = 1024
    pairs = {(a, b) for b in (7, 600) for a in range(size) if a != b} | {(9, 10)}
    begun = time.process_time()
    assert {each.host for each in find_suspects(pairs, size)} == {7, 600, None}
    assert time.process_time() - begun < 2
