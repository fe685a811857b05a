"""A verdict and the source: calls as runs of tests/lint_cases recorded them, each with what the linter says of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.facts.ranks import Group, GroupProgress, Place, Raised, Stack
from holdfast.facts.source import Loop, Surroundings
from holdfast.findings import Level, RuledOut, Subject, Verdict, finding
from holdfast.rules import source_hints, source_match
from holdfast.rules.causes import by_name
from holdfast.rules.source_hints import Hint
from tests.rules.tables import call, row, world

FILE = "/job/bad.py"


def at(line, file=FILE):
    return Place(file, line, "f")


def made(sequence, line, caller, name="all_reduce", **more):
    return replace(call(sequence, name, site=at(line), done=True, **more), caller=at(caller))


def waits(sequence, line, caller, name="all_reduce", **more):
    return replace(call(sequence, name, site=at(line), **more), caller=at(caller))


def hint(kind, place, op, *path, cause="rank-guarded-collective", guard=None, gravity=0, **more):
    claim = finding(by_name(cause), f"lint's own words of line {place}", subject=Subject(file=FILE, line=place))
    return Hint(finding=claim, rule=kind, kind=kind, gravity=gravity, place=at(place), guard=at(guard or place),
                call=at(op) if op else None, path=tuple(at(each) for each in path), **more)  # fmt: skip


def verdict(cause, rank, line, **more):
    root = finding(by_name(cause), "what the run saw", subject=Subject(rank=rank, file=FILE, line=line), **more)
    follows = finding(by_name(cause), "rank 9 waits", level=Level.NOTE)
    out = (RuledOut("rank-guarded-collective", "it is none"), RuledOut("rank-killed", "all live"))
    return Verdict(question="Why?", root=root, consequences=(follows,), ruled_out=out)


def refined(said, ranks, *hints, groups=None, source=None):
    return source_match.refine(said, ranks, groups or world(len(ranks)), source or {}, hints)


#: b09: rank 1 never notes that it has synchronised, and does so at every step.
B09 = (
    row(0, *(made(n, 33, 43) for n in (1, 2)), *(made(n, 22, 27) for n in (3, 4, 5)), made(6, 33, 43), made(7, 33, 43),
        waits(8, 44, 48, "barrier")),
    row(1, *(made(n, 33, 43) for n in (1, 2)), *(made(n, 22, 27) for n in (3, 4, 5)), made(6, 33, 43), made(7, 22, 27),
        waits(8, 22, 27)),
)  # fmt: skip
SYNC = hint("branch", 36, 22, 36, 27, 22, guard=35)


def test_the_collective_at_which_ranks_first_differ_decides():
    found = refined(verdict("mismatched-operation", 0, 44), B09, SYNC)
    root = found.root
    assert (root.code, root.subject.rank, root.subject.file, root.subject.line) == ("SYNC004", 1, FILE, 36)
    assert root.message == "lint's own words of line 36; in this run rank 1 entered it as #7, and rank 0 did not"
    assert root.confidence == source_hints._FIRST
    told = [fact.text for fact in root.evidence]
    assert "collective #7 of group '0': rank 1 makes all_reduce at bad.py:22, called at bad.py:27" in told
    assert "collective #7 of group '0': rank 0 makes all_reduce at bad.py:33, called at bad.py:43" in told
    assert {"what the run saw", "lint: branch finds it here"} <= {*told}
    assert root.remedies == by_name("rank-guarded-collective").remedies
    assert [each.code for each in found.consequences] == ["SYNC004"]
    assert [each.cause for each in found.ruled_out] == ["rank-killed"]


@pytest.mark.parametrize(
    "other",
    [
        hint("branch", 50, 51, 50, 51),  # of lines where nobody was
        hint("branch", 12, 22, 12, 22),  # the same collective, by a call that was not made
        hint("branch", 43, 43, 43),  # a line that was passed, and has no collective
        replace(SYNC, call=at(22, "/job/other.py")),
        replace(SYNC, call=None),
    ],
)
def test_what_has_no_call_in_common_with_the_run_is_not_used(other):
    said = verdict("mismatched-operation", 0, 44)
    assert refined(said, B09, other) is said


def test_of_several_that_fit_the_gravest_is_taken():
    lesser = replace(SYNC, gravity=3, place=at(35))
    assert refined(verdict("mismatched-operation", 0, 44), B09, lesser, SYNC).root.subject.line == 36


def test_a_collective_that_all_made_explains_nothing():
    ranks = tuple(row(n, made(1, 22, 27), waits(2, 22, 27)) for n in (0, 1))
    said = verdict("network-fabric-fault", None, None)
    assert refined(said, ranks, SYNC) is said


def test_another_kind_of_verdict_is_left_alone():
    said = verdict("rank-killed", 0, 44)
    assert not source_match.concerns(said, B09)
    assert refined(said, B09, SYNC) is said


def test_who_leaves_early_is_the_one_without_the_call():
    """b28: rank 0 returned, and ended; rank 1 went on to the barrier, from a line of its own."""
    common = (made(6, 31, 37), made(7, 23, 39, "barrier"))
    ranks = (row(0, *common), row(1, *common, made(8, 23, 44, "barrier")))
    early = hint("exit", 43, 23, 44, 23, cause="rank-skips-collective", guard=42)
    root = refined(verdict("uneven-inputs", 0, 23), ranks, early).root
    assert (root.code, root.subject.rank, root.subject.line) == ("SYNC005", 0, 43)
    assert "collective #8 of group '0': rank 0 never came to it" in [fact.text for fact in root.evidence]


def test_a_call_in_the_loop_is_of_the_loop():
    """b45: the gradients of the forward at line 30 are reduced at line 32."""
    ranks = (row(0, waits(10, 32, 39)), row(1, waits(10, 40, 44, "barrier")))
    loop = hint("loop", 29, 30, 30, cause="uneven-inputs")
    source = {at(32): Surroundings("f", 20, "", loops=(Loop(29, 33, "for seeds in loader", None),))}
    root = refined(verdict("uneven-inputs", 1, 40), ranks, loop, source=source).root
    assert (root.subject.rank, root.subject.line) == (1, 29)
    said = verdict("uneven-inputs", 1, 40)
    assert refined(said, ranks, loop) is said


def test_a_member_that_never_came_to_its_group_counts():
    """b38: rank 1 is in a collective of a group of both, rank 0 in one of all."""
    groups = {**world(2), "1": Group("1", (0, 1))}
    ranks = (row(0, waits(1, 39, 43, "barrier")), row(1, waits(1, 16, 38, group="1")))
    loop = hint("loop", 15, 16, 16, cause="uneven-inputs")
    said = verdict("collective-order-inversion", 0, 39)
    assert refined(said, ranks, loop, groups=groups).root.code == "SYNC003"
    groups["1"] = Group("1", (1,))
    assert refined(said, ranks, loop, groups=groups) is said


def test_where_they_wait_counts_less_than_where_they_parted():
    ranks = (
        row(0, made(1, 60, 70), made(2, 33, 43), waits(3, 44, 48, "barrier")),
        row(1, made(1, 61, 70), made(2, 33, 43), waits(3, 22, 27)),
    )
    root = refined(verdict("mismatched-operation", 0, 44), ranks, SYNC).root
    assert (root.code, root.confidence) == ("SYNC004", source_hints._NOW)


def test_what_the_longest_memory_alone_has_is_no_difference():
    ranks = (row(0, made(1, 22, 27), waits(2, 33, 43)), row(1, waits(2, 33, 43)))
    said = verdict("network-fabric-fault", None, None)
    assert refined(said, ranks, SYNC) is said


def test_one_call_with_other_things_in_it_is_of_an_order_that_differs():
    """b49: all_reduce at line 25 for each of a set; gloo may abort in the all_gather at line 29 of the same loop."""
    order = hint("order", 23, 25, 25, cause="collective-order-inversion")
    ranks = (row(0, waits(1, 25, 38, elements=1)), row(1, waits(1, 25, 38, elements=3)))
    root = refined(verdict("mismatched-shape", 1, 25, confidence=0.6), ranks, order).root
    assert (root.code, root.subject.line, root.confidence) == ("SYNC006", 23, pytest.approx(0.8))
    assert root.message == "lint's own words of line 23; in this run: what the run saw"
    source = {at(29): Surroundings("f", 20, "", loops=(Loop(23, 31, "for key in out", None),))}
    gather = waits(1, 29, 38, "all_gather")
    said = verdict("segfault-in-worker", 1, 29)
    ranks = (row(0, made(1, 29, 38, "all_gather")), row(1, gather, exit_code=-6))
    assert refined(said, ranks, order, source=source).root.code == "SYNC006"
    ranks = (row(0, made(1, 29, 38, "all_gather")), row(1, gather, exit_code=-11))
    assert refined(said, ranks, order, source=source) is said


def test_groups_of_one_name_with_other_members_were_not_made_by_all():
    """b50: pairs of ranks made the second group each for themselves."""
    groups = {**world(4), "1 of (0, 3)": Group("1 of (0, 3)", (0, 3)), "1 of (1, 2)": Group("1 of (1, 2)", (1, 2))}
    new = made(1, 14, 9, "new_group", group="new_group")
    ranks = tuple(
        row(n, new, waits(1, 17, 24, group="1 of (0, 3)" if n in (0, 3) else "1 of (1, 2)")) for n in range(4)
    )
    creation = hint("branch", 14, 14, 14, cause="new-group-by-some-ranks", creates=True)
    said = verdict("network-fabric-fault", None, None)
    root = refined(said, ranks, creation, groups=groups).root
    assert (root.code, root.subject.line) == ("SYNC010", 14)
    assert "the ranks made groups of one name with other members: [0, 3] and [1, 2]" in root.evidence[0].text
    assert refined(said, ranks, replace(creation, call=at(15)), groups=groups) is said
    inside = replace(new, completed=None)
    ranks = (row(0, new), row(1, new), *(row(n, inside) for n in (2, 3)))
    assert refined(said, ranks, creation).root.code == "SYNC010"
    assert refined(said, ranks, replace(creation, creates=False)) is said


@pytest.mark.parametrize(("line", "kind", "code"), [(25, "FileNotFoundError", "DATA003"), (26, "FileNotFoundError", ""),
                                                    (25, "ValueError", "")])  # fmt: skip
def test_what_was_read_before_it_was_written(line, kind, code):
    """b60: rank 1 reads what rank 0 is about to write."""
    race = hint("file", 25, None, cause="model-download-race")
    ranks = (row(0), row(1, raised=Raised(kind, "stats.json", at(line))))
    said = verdict("python-exception-on-one-rank", 1, line)
    found = refined(said, ranks, race)
    assert found.root.code == code if code else found is said


def standing(rank, *lines, **more):
    return row(rank, stacks=(Stack(tuple(at(line) for line in lines)),), **more)


def test_where_there_are_stacks_alone_the_whole_way_to_the_collective_counts():
    """b09 under torchrun, as attach sees it."""
    ranks = (standing(0, 44, 48), standing(1, 22, 27, 36, 43, 48))
    root = refined(verdict("collective-mismatch", 0, 44, confidence=0.25), ranks, SYNC).root
    assert (root.code, root.subject.rank, root.confidence) == ("SYNC004", 1, source_hints._NOW)
    assert root.message.endswith("in this run rank 1 entered it, and rank 0 stood elsewhere")
    said = verdict("collective-mismatch", 0, 44)
    assert refined(said, ranks, hint("branch", 12, 22, 12, 22)) is said
    assert refined(said, (standing(0, 22, 99), ranks[1]), SYNC) is said


def test_of_whose_calls_nothing_is_known_nothing_is_said():
    ranks = (
        row(0, groups={}, unseen=("its box: it is torn",)),
        row(1, waits(8, 22, 27), groups={"0": GroupProgress(8, 7)}),
    )
    said = verdict("network-fabric-fault", None, None)
    assert refined(said, ranks, SYNC) is said


@pytest.mark.parametrize(
    ("cause", "death"),
    [
        ("segfault-in-worker", {"exit_code": -6}),
        ("oom-on-one-rank-then-timeout", {"raised": Raised("RuntimeError", "can't allocate memory", at(20))}),
    ],
)
def test_who_dies_in_the_collective_at_which_they_part_dies_of_that(cause, death):
    """b04, b74: gloo takes what another collective sends for its own."""
    ranks = (
        row(0, made(1, 14, 35, "all_gather"), waits(2, 20, 25, "all_gather"), **death),
        row(1, made(1, 14, 35, "all_gather"), made(2, 14, 35, "all_gather"), made(3, 37, 41, "barrier")),
    )
    guarded = hint("branch", 25, 20, 25, 20)
    assert refined(verdict(cause, 0, 20), ranks, guarded).root.code == "SYNC004"
    elsewhere = (
        replace(ranks[0], exit_code=1, raised=Raised("RuntimeError", "can't allocate memory", at(7))),
        ranks[1],
    )
    said = verdict(cause, 0, 7)
    assert not source_match.concerns(said, elsewhere)
    assert refined(said, elsewhere, guarded) is said


def test_where_the_beginning_is_forgotten_it_is_less_sure():
    ranks = tuple(replace(state, recent=state.recent[6:]) for state in B09)
    assert refined(verdict("mismatched-operation", 0, 44), ranks, SYNC).root.confidence == source_hints._NOW


def test_a_rank_that_is_late_in_the_same_group_may_come_yet():
    ranks = (row(0, made(1, 33, 43), waits(2, 33, 43)), row(1, made(1, 33, 43), made(2, 33, 43), waits(3, 22, 27)))
    said = verdict("network-fabric-fault", None, None)
    assert refined(said, ranks, SYNC) is said
