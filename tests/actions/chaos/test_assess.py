"""What is wrong with a job that was hurt: each thing that may be wrong is told, and nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.actions.chaos.assess import Fact, Played, redone, wrong
from holdfast.actions.chaos.scenarios import Scenario

SCENARIO = Scenario(name="", fault="", moment="", causes=frozenset({"rank-killed"}), culprit=1)
KILLED = {"cause": "rank-killed", "subject": {"rank": 1}}


def fact(what, step, generation=0, **more):
    return Fact(what=what, step=step, generation=generation, time=0.0, **more)


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


def test_verdicts():
    only(wrong(SCENARIO, played(LIVED), PEACE), "no verdict was given")
    only(wrong(SCENARIO, played(LIVED, roots=[KILLED | {"subject": {"rank": 0}}]), PEACE), "names rank 0, not 1")
    only(wrong(SCENARIO, played(LIVED, roots=[KILLED, KILLED | {"cause": "peer-lost"}]), PEACE), "says peer-lost")
    only(wrong(replace(SCENARIO, causes=frozenset()), GOOD, PEACE), "nothing failed, and a verdict says rank-killed")


def test_what_is_left():
    only(wrong(SCENARIO, replace(GOOD, processes=("77 python train.py",)), PEACE), "77 python train.py")
    only(wrong(SCENARIO, replace(GOOD, shared=("holdfast-x",)), PEACE), "holdfast-x was left in shared memory")
