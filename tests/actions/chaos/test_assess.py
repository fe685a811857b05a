"""What is wrong with a job that was hurt: each thing that may be wrong is told, and nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.actions.chaos.assess import Fact, Played, redone, wrong
from holdfast.actions.chaos.scenario import Scenario
from holdfast.actions.ledger import Event, Record
from holdfast.actions.policy import Course, Decision, Failure
from holdfast.adjustments import Adjustments, Window
from holdfast.findings import Fact as Told

SCENARIO = Scenario(name="", fault="", moment="", causes=frozenset({"rank-killed"}), culprit=1)
KILLED = {"cause": "rank-killed", "subject": {"rank": 1}}


def fact(what, step, generation=0, **more):
    return Fact(what=what, step=step, generation=generation, **more)


def steps(first, last, generation=0):
    return [fact("step", n, generation, loss=f"{n}.0", samples=(n,)) for n in range(first, last + 1)]


def played(trace, *, roots=(), **more):
    incidents = [{"verdict": {"root": root}} for root in roots]
    return Played(**{"statuses": (0,), "reports": ({"incidents": incidents},), "traces": {0: trace}} | more)


PEACE = played([fact("resumed", 0), *steps(1, 6), fact("done", 6, weights="w")])
LIVED = [
    fact("resumed", 0), *steps(1, 2), fact("saved", 2), *steps(3, 4),
    fact("resumed", 2, 1), *steps(3, 6, 1), fact("done", 6, 1, weights="w"),
]  # fmt: skip
GOOD = played(LIVED, roots=[KILLED])


def only(found, word):
    assert len(found) == 1, found
    assert word in found[0]


def test_a_job_that_came_back_is_fine():
    assert wrong(SCENARIO, GOOD, PEACE) == []
    assert redone(GOOD) == 2


def test_how_it_ends():
    only(wrong(SCENARIO, replace(GOOD, statuses=(1,)), PEACE), "status 1")
    only(wrong(SCENARIO, replace(GOOD, statuses=(None,)), PEACE), "did not end in time")
    only(wrong(SCENARIO, replace(GOOD, traces={0: LIVED[:-1]}), PEACE), "was not done")
    only(wrong(SCENARIO, replace(GOOD, traces={0: [*LIVED[:-1], fact("done", 6, 1, weights="v")]}), PEACE), "weights")


def test_another_loss_is_told_even_where_it_was_done_again():
    odd = [replace(each, loss="3.5") if (each.step, each.generation, each.what) == (3, 0, "step") else each
           for each in LIVED]  # fmt: skip
    only(wrong(SCENARIO, replace(GOOD, traces={0: odd}), PEACE), "another loss in 1 steps, first at step 3")


def test_samples_that_are_lost_and_that_come_twice():
    odd = [replace(each, samples=(5,)) if (each.step, each.generation) == (6, 1) and each.samples else each
           for each in LIVED]  # fmt: skip
    found = wrong(SCENARIO, replace(GOOD, traces={0: odd}), PEACE)
    assert [word for word in ("other samples", "were lost", "came twice") if any(word in each for each in found)] == [
        "other samples", "were lost", "came twice",
    ]  # fmt: skip


def test_a_checkpoint_that_was_declared_is_not_passed_over_unless_it_was_damaged():
    back = [fact("resumed", 0, 1), *steps(1, 2, 1)]
    lost = replace(GOOD, traces={0: [*LIVED[:6], *back, *LIVED[7:]]})
    only(wrong(SCENARIO, lost, PEACE), "went on from step 0, though step 2 was declared saved")
    assert wrong(replace(SCENARIO, damaged=1), lost, PEACE) == []


def test_what_a_later_start_went_back_behind_does_not_count():
    """Rank 1 made steps 3 and 4 and is gone: what rank 0 went back behind counts for it neither."""
    peace = replace(PEACE, traces={0: PEACE.traces[0], 1: [fact("resumed", 0), *steps(1, 2), fact("done", 2)]})
    gone = replace(GOOD, traces={0: LIVED, 1: [fact("resumed", 0), *steps(1, 4)]})
    assert wrong(replace(SCENARIO, apart_at=2), gone, peace) == []
    found = wrong(replace(SCENARIO, apart_at=2), replace(gone, traces={0: LIVED, 1: steps(1, 1)}), peace)
    assert found == ["rank 1 never did step 2", "1 samples were lost, such as 2"]


def test_a_job_that_computes_otherwise_is_compared_in_what_counts():
    odd = [replace(each, loss="nan") if (each.step, each.generation) == (4, 0) else each for each in LIVED]
    skipped = Adjustments(skip=(Window(4, 4),))
    ledgers = ((failed(Decision(course=Course.RESTART, reason="again", adjustments=skipped)),),)
    lived = replace(GOOD, traces={0: odd}, ledgers=ledgers)
    assert wrong(replace(SCENARIO, adjusted="skip"), lived, PEACE) == []
    only(wrong(SCENARIO, lived, PEACE), "another loss in 1 steps, first at step 4")
    only(wrong(replace(SCENARIO, adjusted="micro_batches"), lived, PEACE), "no decision that changes micro_batches")


AGAIN = Decision(course=Course.RESTART, reason="restart 1 of 4")


def failed(decision=AGAIN, **different):
    evidence = (Told(text="exit code -9", origin="launcher"),)
    found = Failure(at=0.0, generation=0, code="PROC001", cause="rank-killed", message="killed", evidence=evidence)
    return Record(event=Event.FAILED, at=0.0, failure=replace(found, **different), decision=decision)


def test_the_history_has_cause_evidence_and_decision():
    assert wrong(SCENARIO, replace(GOOD, ledgers=((failed(),),)), PEACE) == []
    only(wrong(SCENARIO, replace(GOOD, ledgers=((Record(event=Event.BEGUN, at=0.0),),)), PEACE), "tells of no failure")
    only(wrong(SCENARIO, replace(GOOD, ledgers=((failed(cause="peer-lost"),),)), PEACE), "history names PROC001 peer-")
    only(wrong(SCENARIO, replace(GOOD, ledgers=((failed(evidence=()),),)), PEACE), "no evidence")
    assert "the history tells of a failure and of no decision" in wrong(
        SCENARIO, replace(GOOD, ledgers=((failed(None),),)), PEACE
    )
    only(wrong(replace(SCENARIO, courses=frozenset({"replace"})), replace(GOOD, ledgers=((failed(),),)), PEACE),
         "history says restart, not replace")  # fmt: skip


def test_verdicts():
    only(wrong(SCENARIO, played(LIVED), PEACE), "no verdict was given")
    only(wrong(SCENARIO, played(LIVED, roots=[KILLED | {"subject": {"rank": 0}}]), PEACE), "names rank 0, not 1")
    only(wrong(SCENARIO, played(LIVED, roots=[KILLED, KILLED | {"cause": "peer-lost"}]), PEACE), "says peer-lost")
    only(wrong(replace(SCENARIO, causes=frozenset()), GOOD, PEACE), "nothing failed, and a verdict says rank-killed")


def test_what_is_left():
    only(wrong(SCENARIO, replace(GOOD, processes=("77 python train.py",)), PEACE), "77 python train.py")
    only(wrong(SCENARIO, replace(GOOD, shared=("holdfast-x",)), PEACE), "holdfast-x was left in shared memory")
