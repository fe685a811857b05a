"""What pairs that fail have in common."""

import random
import time

import pytest

from holdfast.rules.reach.blame import blame


def test_one_link_in_one_or_both_directions():
    assert [each.pairs for each in blame([(0, 1)], 8)] == [((0, 1),)]
    assert [each.pairs for each in blame([(0, 1), (1, 0)], 2)] == [((0, 1), (1, 0))]


def test_a_host_that_nobody_reaches_and_one_that_reaches_nobody():
    (into,) = blame([(source, 3) for source in range(8) if source != 3], 8)
    assert (into.host, into.inward, into.outward) == (3, True, False)
    (out,) = blame([(3, target) for target in range(8) if target != 3], 8)
    assert (out.host, out.inward, out.outward) == (3, False, True)


def test_two_bad_hosts_and_a_link():
    pairs = {(a, b) for a in range(8) for b in range(8) if a != b and {a, b} & {2, 5}} | {(0, 1)}
    found = blame(pairs, 8)
    assert {each.host for each in found} == {2, 5, None}
    assert {pair for each in found for pair in each.pairs} == pairs


def test_every_failing_pair_is_told_exactly_once():
    chance = random.Random(1)
    for _ in range(50):
        size = chance.randint(2, 9)
        pairs = {(a, b) for a in range(size) for b in range(size) if a != b and chance.random() < 0.3}
        told = [pair for each in blame(pairs, size) for pair in each.pairs]
        assert sorted(told) == sorted(pairs)


def test_where_nearly_all_fails_no_single_host_is_blamed():
    pairs = {(a, b) for a in range(6) for b in range(6) if a != b} - {(2, 3)}
    (suspect,) = blame(pairs, 6)
    assert (suspect.many, suspect.host, suspect.hosts, set(suspect.pairs)) == (True, None, 6, pairs)


def test_two_hosts_of_four_that_nobody_reaches_are_two_hosts():
    pairs = {(a, b) for a in range(4) for b in (1, 2) if a != b}
    assert [(each.host, each.inward, each.many) for each in blame(pairs, 4)] == [(1, True, False), (2, True, False)]


def test_more_links_than_a_person_reads_are_one_matter():
    pairs = {(number, number + 1) for number in range(0, 400, 2)}
    (suspect,) = blame(pairs, 400)
    assert (suspect.many, suspect.hosts) == (True, 400)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.3])
def test_hundreds_of_hosts_of_which_a_large_part_fails_take_no_time(share):
    """Each host that is blamed costs what it has in pairs, and not all pairs again."""
    chance, size = random.Random(2), 512
    pairs = {(a, b) for a in range(size) for b in range(size) if a != b and chance.random() < share}
    begun = time.process_time()
    told = [pair for each in blame(pairs, size) for pair in each.pairs]
    assert time.process_time() - begun < 10
    assert len(told) == len(pairs) == len(set(told))


def test_a_thousand_hosts_take_no_time():
    size = 1024
    pairs = {(a, b) for b in (7, 600) for a in range(size) if a != b} | {(9, 10)}
    begun = time.process_time()
    assert {each.host for each in blame(pairs, size)} == {7, 600, None}
    assert time.process_time() - begun < 2
