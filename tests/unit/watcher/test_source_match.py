"""Refinement of verdicts by hints: calls as recorded in runs of tests/faults/lint_cases."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.causes import by_name
from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.core.findings import Level, RuledOut, Subject, Verdict, make_finding
from holdfast.core.rank_table import (
    GroupProgress,
    ProcessGroupInfo,
    RaisedException,
    SourceLine,
    ThreadStack,
)
from holdfast.watcher.rules import source_hints, source_match
from holdfast.watcher.rules.source_hints import SourceHint
from holdfast.watcher.source_context import EnclosingLoop, SourceContext
from tests.unit.watcher.rank_tables import call, row, world

FILE = "/job/bad.py"


def at(line, file=FILE):
    return SourceLine(file, line, "f")


def completed_call(sequence, line, caller, name="all_reduce", **more):
    return replace(
        call(sequence, name, site=at(line), done=True, **more),
        caller=at(caller) if caller else None,
    )


def pending_call(sequence, line, caller, name="all_reduce", **more):
    return replace(
        call(sequence, name, site=at(line), **more), caller=at(caller) if caller else None
    )


def hint(kind, place, op, *path, cause="rank-guarded-collective", guard=None, gravity=0, **more):
    claim = make_finding(
        by_name(cause),
        f"lint's sentence about line {place}",
        subject=Subject(file=FILE, line=place),
    )
    return SourceHint(
        finding=claim,
        rule=kind,
        kind=kind,
        gravity=gravity,
        place=at(place),
        guard=at(guard or place),
        call=at(op) if op else None,
        path=tuple(at(each) for each in path),
        **more,
    )


def verdict(cause, rank, line, **more):
    root = make_finding(
        by_name(cause),
        "the finding of the run",
        subject=Subject(rank=rank, file=FILE, line=line),
        **more,
    )
    follows = make_finding(by_name(cause), "rank 9 waits", level=Level.NOTE)
    out = (RuledOut("rank-guarded-collective", "it is none"), RuledOut("rank-killed", "all live"))
    return Verdict(question="Why?", root=root, consequences=(follows,), ruled_out=out)


def refined(before, ranks, *hints, groups=None, source=None):
    return source_match.refine(before, ranks, groups or world(len(ranks)), source or {}, hints)


#: b09: rank 1 never records that it has synchronized, so it synchronizes at every step.
B09 = (
    row(
        0,
        *(completed_call(n, 33, 43) for n in (1, 2)),
        *(completed_call(n, 22, 27) for n in (3, 4, 5)),
        completed_call(6, 33, 43),
        completed_call(7, 33, 43),
        pending_call(8, 44, 48, "barrier"),
    ),
    row(
        1,
        *(completed_call(n, 33, 43) for n in (1, 2)),
        *(completed_call(n, 22, 27) for n in (3, 4, 5)),
        completed_call(6, 33, 43),
        completed_call(7, 22, 27),
        pending_call(8, 22, 27),
    ),
)
SYNC = hint("branch", 36, 22, 36, 27, 22, guard=35)


def test_the_first_differing_collective_confirms_a_hint():
    found = refined(verdict("mismatched-operation", 0, 44), B09, SYNC)
    root = found.root
    assert (root.code, root.subject.rank, root.subject.file, root.subject.line) == (
        "SYNC004",
        1,
        FILE,
        36,
    )
    assert (
        root.message
        == "lint's sentence about line 36; in this run rank 1 entered it as #7, and rank 0 did not"
    )
    assert root.confidence == source_hints._CONFIDENCE_FIRST
    texts = [fact.text for fact in root.evidence]
    assert (
        "collective #7 of group '0': rank 1 makes all_reduce at bad.py:22, called at bad.py:27"
        in texts
    )
    assert (
        "collective #7 of group '0': rank 0 makes all_reduce at bad.py:33, called at bad.py:43"
        in texts
    )
    assert {"the finding of the run", "lint: branch reports this line"} <= {*texts}
    assert root.remedies == RANK_GUARDED_COLLECTIVE.remedies
    assert [each.code for each in found.consequences] == ["SYNC004"]
    assert [each.cause for each in found.ruled_out] == ["rank-killed"]


@pytest.mark.parametrize(("odd", "is_used"), [(1, False), (0, True)])
def test_a_repeated_call_is_not_explained_by_an_exception_that_skips_it(odd, is_used):
    """A retry repeats the function with the collective; lint names the handler of the retry."""
    swallowed = hint("swallowed", 20, 22, cause="rank-skips-collective")
    before = verdict("mismatched-operation", odd, 22, confidence=0.9)
    assert (refined(before, B09, swallowed) is not before) == is_used


def test_the_line_at_which_a_rank_left_a_loop_keeps_its_cause():
    """Lint has another view of the same `break`: that it skips a collective."""
    before = verdict("uneven-inputs", 0, 41)
    ends = hint("exit", 41, 44, cause="rank-skips-collective")
    root = refined(before, B09, ends).root
    assert (root.cause, root.subject.rank, root.subject.line) == ("uneven-inputs", 0, 41)
    assert "lint: exit reports this line" in root.evidence[-1].text


@pytest.mark.parametrize(
    "other",
    [
        hint("branch", 50, 51, 50, 51),  # lines without a rank
        hint("branch", 12, 22, 12, 22),  # the same collective through another call
        hint("branch", 43, 43, 43),  # an executed line without a collective
        replace(SYNC, call=at(22, "/job/other.py")),
        replace(SYNC, call=None),
    ],
)
def test_a_hint_without_a_call_in_the_run_is_not_used(other):
    before = verdict("mismatched-operation", 0, 44)
    assert refined(before, B09, other) is before


def test_the_most_severe_matching_hint_is_used():
    lesser = replace(SYNC, gravity=3, place=at(35))
    assert (
        refined(verdict("mismatched-operation", 0, 44), B09, lesser, SYNC).root.subject.line == 36
    )


def test_a_collective_of_all_ranks_confirms_no_hint():
    ranks = tuple(row(n, completed_call(1, 22, 27), pending_call(2, 22, 27)) for n in (0, 1))
    before = verdict("network-fabric-fault", None, None)
    assert refined(before, ranks, SYNC) is before


def test_other_causes_are_not_refined():
    before = verdict("rank-killed", 0, 44)
    assert not source_match.is_refinable(before, B09)
    assert refined(before, B09, SYNC) is before


def test_the_rank_that_exits_early_is_the_one_without_the_call():
    """b28: rank 0 returned and exited; rank 1 entered a barrier at another line."""
    common = (completed_call(6, 31, 37), completed_call(7, 23, 39, "barrier"))
    ranks = (row(0, *common), row(1, *common, completed_call(8, 23, 44, "barrier")))
    early = hint("exit", 43, 23, 44, 23, cause="rank-skips-collective", guard=42)
    root = refined(verdict("uneven-inputs", 0, 23), ranks, early).root
    assert (root.code, root.subject.rank, root.subject.line) == ("SYNC005", 0, 43)
    assert "collective #8 of group '0': rank 0 never entered it" in [
        fact.text for fact in root.evidence
    ]


def test_a_call_inside_the_loop_matches_a_loop_hint():
    """b45: the gradients of the forward at line 30 are reduced at line 32."""
    ranks = (row(0, pending_call(10, 32, 39)), row(1, pending_call(10, 40, 44, "barrier")))
    loop = hint("loop", 29, 30, 30, cause="uneven-inputs")
    source = {
        at(32): SourceContext(
            "f", 20, "", loops=(EnclosingLoop(29, 33, "for seeds in loader", None),)
        )
    }
    root = refined(verdict("uneven-inputs", 1, 40), ranks, loop, source=source).root
    assert (root.subject.rank, root.subject.line) == (1, 29)
    before = verdict("uneven-inputs", 1, 40)
    assert refined(before, ranks, loop) is before


def test_a_member_that_never_entered_its_group_counts():
    """b38: rank 1 is in a collective of a subgroup, rank 0 in one of the world group."""
    groups = {**world(2), "1": ProcessGroupInfo("1", (0, 1))}
    ranks = (row(0, pending_call(1, 39, 43, "barrier")), row(1, pending_call(1, 16, 38, group="1")))
    loop = hint("loop", 15, 16, 16, cause="uneven-inputs")
    before = verdict("collective-order-inversion", 0, 39)
    assert refined(before, ranks, loop, groups=groups).root.code == "SYNC003"
    groups["1"] = ProcessGroupInfo("1", (1,))
    assert refined(before, ranks, loop, groups=groups) is before


def test_a_waiting_call_has_less_confidence_than_the_first_difference():
    ranks = (
        row(
            0,
            completed_call(1, 60, 70),
            completed_call(2, 33, 43),
            pending_call(3, 44, 48, "barrier"),
        ),
        row(1, completed_call(1, 61, 70), completed_call(2, 33, 43), pending_call(3, 22, 27)),
    )
    root = refined(verdict("mismatched-operation", 0, 44), ranks, SYNC).root
    assert (root.code, root.confidence) == ("SYNC004", source_hints._CONFIDENCE_WAITING)


def test_calls_recorded_by_only_one_rank_are_no_difference():
    ranks = (
        row(0, completed_call(1, 22, 27), pending_call(2, 33, 43)),
        row(1, pending_call(2, 33, 43)),
    )
    before = verdict("network-fabric-fault", None, None)
    assert refined(before, ranks, SYNC) is before


def test_a_mismatched_call_confirms_an_order_hint():
    """b49: all_reduce at line 25 in a loop over a set; gloo may abort in the all_gather below."""
    order = hint("order", 23, 25, 25, cause="collective-order-inversion")
    ranks = (
        row(0, pending_call(1, 25, 38, elements=1)),
        row(1, pending_call(1, 25, 38, elements=3)),
    )
    root = refined(verdict("mismatched-shape", 1, 25, confidence=0.6), ranks, order).root
    assert (root.code, root.subject.line, root.confidence) == ("SYNC006", 23, pytest.approx(0.8))
    assert root.message == "lint's sentence about line 23; in this run: the finding of the run"
    source = {
        at(29): SourceContext("f", 20, "", loops=(EnclosingLoop(23, 31, "for key in out", None),))
    }
    gather = pending_call(1, 29, 38, "all_gather")
    before = verdict("segfault-in-worker", 1, 29)
    ranks = (row(0, completed_call(1, 29, 38, "all_gather")), row(1, gather, exit_code=-6))
    assert refined(before, ranks, order, source=source).root.code == "SYNC006"
    ranks = (row(0, completed_call(1, 29, 38, "all_gather")), row(1, gather, exit_code=-11))
    assert refined(before, ranks, order, source=source) is before


def test_an_exit_from_the_iteration_explains_a_later_call_of_the_same_loop():
    """The linter names the forward pass at 22; the ranks differ in the backward pass at 24."""
    loop = EnclosingLoop(10, 30, "for batch in batches", None)
    source = {
        at(line): SourceContext("train", 1, "", loops=loops)
        for line, loops in ((24, (loop,)), (44, ()))
    }
    ranks = (
        row(0, *(completed_call(n, 24, None) for n in (1, 2)), pending_call(3, 24, None)),
        row(
            1, *(completed_call(n, 24, None) for n in (1, 2)), pending_call(3, 44, None, "barrier")
        ),
    )
    skips = hint("exit", 13, 22, 22, guard=12)
    before = verdict("uneven-inputs", 1, 10)
    found = refined(before, ranks, skips, source=source).root
    assert (found.subject.rank, found.subject.line) == (1, 13)
    after = hint("exit", 26, 28, 28, guard=25)
    assert refined(before, ranks, after, source=source) is before


def test_groups_of_one_name_with_different_members_confirm_a_hint():
    """b50: pairs of ranks created the second group separately."""
    groups = {
        **world(4),
        "1 of (0, 3)": ProcessGroupInfo("1 of (0, 3)", (0, 3)),
        "1 of (1, 2)": ProcessGroupInfo("1 of (1, 2)", (1, 2)),
    }
    new = completed_call(1, 14, 9, "new_group", group="new_group")
    ranks = tuple(
        row(n, new, pending_call(1, 17, 24, group="1 of (0, 3)" if n in (0, 3) else "1 of (1, 2)"))
        for n in range(4)
    )
    creation = hint("branch", 14, 14, 14, cause="new-group-by-some-ranks", creates=True)
    before = verdict("network-fabric-fault", None, None)
    root = refined(before, ranks, creation, groups=groups).root
    assert (root.code, root.subject.line) == ("SYNC010", 14)
    assert (
        "ranks created groups of the same name with different members: [0, 3] and [1, 2]"
        in root.evidence[0].text
    )
    assert refined(before, ranks, replace(creation, call=at(15)), groups=groups) is before
    inside = replace(new, completed=None)
    ranks = (row(0, new), row(1, new), *(row(n, inside) for n in (2, 3)))
    assert refined(before, ranks, creation).root.code == "SYNC010"
    assert refined(before, ranks, replace(creation, creates=False)) is before


@pytest.mark.parametrize(
    ("line", "kind", "code"),
    [(25, "FileNotFoundError", "DATA003"), (26, "FileNotFoundError", ""), (25, "ValueError", "")],
)
def test_a_file_read_before_it_was_written_confirms_a_hint(line, kind, code):
    """b60: rank 1 reads what rank 0 is about to write."""
    race = hint("file", 25, None, cause="model-download-race")
    ranks = (row(0), row(1, raised=RaisedException(kind, "stats.json", at(line))))
    before = verdict("python-exception-on-one-rank", 1, line)
    found = refined(before, ranks, race)
    assert found.root.code == code if code else found is before


def sampled_row(rank, *lines, **more):
    return row(rank, stacks=(ThreadStack(tuple(at(line) for line in lines)),), **more)


def test_stacks_alone_must_contain_the_whole_path():
    """b09 under torchrun, sampled by attach."""
    ranks = (sampled_row(0, 44, 48), sampled_row(1, 22, 27, 36, 43, 48))
    root = refined(verdict("collective-mismatch", 0, 44, confidence=0.25), ranks, SYNC).root
    assert (root.code, root.subject.rank, root.confidence) == (
        "SYNC004",
        1,
        source_hints._CONFIDENCE_WAITING,
    )
    assert root.message.endswith("in this run rank 1 entered it, and rank 0 is elsewhere")
    before = verdict("collective-mismatch", 0, 44)
    assert refined(before, ranks, hint("branch", 12, 22, 12, 22)) is before
    assert refined(before, (sampled_row(0, 22, 99), ranks[1]), SYNC) is before


def test_a_rank_with_unknown_calls_confirms_no_hint():
    ranks = (
        row(0, groups={}, unseen=("its trace file: it is torn",)),
        row(1, pending_call(8, 22, 27), groups={"0": GroupProgress(8, 7)}),
    )
    before = verdict("network-fabric-fault", None, None)
    assert refined(before, ranks, SYNC) is before


@pytest.mark.parametrize(
    ("cause", "death"),
    [
        ("segfault-in-worker", {"exit_code": -6}),
        (
            "oom-on-one-rank-then-timeout",
            {"raised": RaisedException("RuntimeError", "can't allocate memory", at(20))},
        ),
    ],
)
def test_a_death_in_the_differing_collective_is_explained_by_it(cause, death):
    """b04, b74: gloo receives the data of another collective."""
    ranks = (
        row(
            0,
            completed_call(1, 14, 35, "all_gather"),
            pending_call(2, 20, 25, "all_gather"),
            **death,
        ),
        row(
            1,
            completed_call(1, 14, 35, "all_gather"),
            completed_call(2, 14, 35, "all_gather"),
            completed_call(3, 37, 41, "barrier"),
        ),
    )
    guarded = hint("branch", 25, 20, 25, 20)
    assert refined(verdict(cause, 0, 20), ranks, guarded).root.code == "SYNC004"
    elsewhere = (
        replace(
            ranks[0],
            exit_code=1,
            raised=RaisedException("RuntimeError", "can't allocate memory", at(7)),
        ),
        ranks[1],
    )
    before = verdict(cause, 0, 7)
    assert not source_match.is_refinable(before, elsewhere)
    assert refined(before, elsewhere, guarded) is before


def test_lost_records_reduce_the_confidence():
    ranks = tuple(replace(state, recent=state.recent[6:]) for state in B09)
    assert (
        refined(verdict("mismatched-operation", 0, 44), ranks, SYNC).root.confidence
        == source_hints._CONFIDENCE_WAITING
    )


def test_a_late_rank_of_the_group_confirms_no_hint():
    ranks = (
        row(0, completed_call(1, 33, 43), pending_call(2, 33, 43)),
        row(1, completed_call(1, 33, 43), completed_call(2, 33, 43), pending_call(3, 22, 27)),
    )
    before = verdict("network-fabric-fault", None, None)
    assert refined(before, ranks, SYNC) is before


def test_a_call_that_was_skipped_once_is_not_explained_by_an_inner_loop():
    """Every turn made one call in the loop; a loop with fewer iterations does not skip it."""
    order = [completed_call(number, 20 if number % 2 else 30, None) for number in range(1, 9)]
    ranks = (
        row(0, *order, pending_call(9, 20, None)),
        row(1, *order, pending_call(9, 30, None)),
    )
    before = verdict("rank-skips-collective", 1, 20, confidence=0.85)
    loop = hint("loop", 19, 20, 20, cause="uneven-inputs")
    after = refined(before, ranks, loop)
    assert (after.root.cause, after.root.subject.line) == ("rank-skips-collective", 20)
    assert any("lint: loop reports this line" in fact.text for fact in after.root.evidence)
    branch = hint("branch", 18, 20, 20)
    assert refined(before, ranks, branch).root.subject.line == 18


def test_a_hint_about_the_root_rank_explains_no_other_operation():
    """Rank 1 calls reduce where the others call all_reduce; its destination is no mistake."""
    calls = [pending_call(1, 27, None, name) for name in ("all_reduce", "reduce")]
    ranks = [row(rank, each) for rank, each in enumerate(calls)]
    destination = hint("root", 27, 27, 27, cause="collective-mismatch")
    before = verdict("mismatched-operation", 1, 27, confidence=0.9)
    assert refined(before, ranks, destination) is before
    before = verdict("collective-mismatch", 1, 27, confidence=0.9)
    assert refined(before, ranks, destination).root.message.startswith("the finding of the run; ")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_rank_in_a_new_call_of_a_test_has_not_left_by_it(is_new):
    """Rank 1 is in a collective of the test at line 59, before the `break` below it."""
    leaves = hint("exit", 61, 62, 62, cause="rank-skips-collective", guard=59)
    first = completed_call(1, 62, 70) if is_new else completed_call(1, 44, 59)
    ranks = (
        row(0, first, completed_call(2, 62, 70), pending_call(3, 62, 70)),
        row(1, first, completed_call(2, 62, 70), pending_call(3, 44, 59, dtype="int64")),
    )
    before = verdict("mismatched-dtype", 1, 44)
    assert (refined(before, ranks, leaves) is before) == is_new
