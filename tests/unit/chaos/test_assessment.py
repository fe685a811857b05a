"""Violations of a scenario's expectations are reported, and nothing else."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.chaos.assessment import (
    ScenarioRun,
    TraceRecord,
    count_repeated_steps,
    find_violations,
)
from holdfast.chaos.scenario import Scenario
from holdfast.core.adjustments import Adjustments, StepWindow
from holdfast.core.failures import JobFailure, RecoveryAction, RecoveryDecision
from holdfast.core.findings import Fact as Told
from holdfast.core.ledger import LedgerEvent, LedgerRecord

SCENARIO = Scenario(name="", fault="", moment="", causes=frozenset({"rank-killed"}), faulty_rank=1)
KILLED = {"cause": "rank-killed", "subject": {"rank": 1}}


def fact(what, step, generation=0, **more):
    return TraceRecord(what=what, step=step, generation=generation, **more)


def steps(first, last, generation=0):
    return [
        fact("step", n, generation, loss=f"{n}.0", samples=(n,)) for n in range(first, last + 1)
    ]


def observed(trace, *, roots=(), **more):
    incidents = [{"verdict": {"root": root}} for root in roots]
    return ScenarioRun(
        **{"statuses": (0,), "reports": ({"incidents": incidents},), "traces": {0: trace}} | more
    )


UNDISTURBED = observed([fact("resumed", 0), *steps(1, 6), fact("done", 6, weights="w")])
RECOVERED = [
    fact("resumed", 0), *steps(1, 2), fact("saved", 2), *steps(3, 4),
    fact("resumed", 2, 1), *steps(3, 6, 1), fact("done", 6, 1, weights="w"),
]  # fmt: skip
GOOD = observed(RECOVERED, roots=[KILLED])


def only(problems, word):
    assert len(problems) == 1, problems
    assert word in problems[0]


def test_recovered_job_passes():
    assert find_violations(SCENARIO, GOOD, UNDISTURBED) == []
    assert count_repeated_steps(GOOD) == 2


def test_exit_status_and_completion():
    only(find_violations(SCENARIO, replace(GOOD, statuses=(1,)), UNDISTURBED), "status 1")
    only(
        find_violations(SCENARIO, replace(GOOD, statuses=(None,)), UNDISTURBED),
        "did not end before the time limit",
    )
    only(
        find_violations(SCENARIO, replace(GOOD, traces={0: RECOVERED[:-1]}), UNDISTURBED),
        "did not finish",
    )
    only(
        find_violations(
            SCENARIO,
            replace(GOOD, traces={0: [*RECOVERED[:-1], fact("done", 6, 1, weights="v")]}),
            UNDISTURBED,
        ),
        "weights",
    )


def test_different_loss_is_reported_even_if_repeated():
    odd = [
        replace(each, loss="3.5")
        if (each.step, each.generation, each.what) == (3, 0, "step")
        else each
        for each in RECOVERED
    ]
    only(
        find_violations(SCENARIO, replace(GOOD, traces={0: odd}), UNDISTURBED),
        "different loss in 1 steps, first at step 3",
    )


def test_skipped_and_repeated_samples():
    odd = [
        replace(each, samples=(5,))
        if (each.step, each.generation) == (6, 1) and each.samples
        else each
        for each in RECOVERED
    ]
    found = find_violations(SCENARIO, replace(GOOD, traces={0: odd}), UNDISTURBED)
    assert [
        word
        for word in ("different samples", "were skipped", "were used twice")
        if any(word in each for each in found)
    ] == [
        "different samples",
        "were skipped",
        "were used twice",
    ]


def test_committed_checkpoint_must_be_used():
    back = [fact("resumed", 0, 1), *steps(1, 2, 1)]
    lost = replace(GOOD, traces={0: [*RECOVERED[:6], *back, *RECOVERED[7:]]})
    only(
        find_violations(SCENARIO, lost, UNDISTURBED),
        "resumed from step 0; step 2 was committed",
    )
    assert find_violations(replace(SCENARIO, damaged_checkpoints=1), lost, UNDISTURBED) == []


def test_undone_steps_do_not_count():
    """Rank 1 ran steps 3 and 4 and then left; both steps are undone."""
    undisturbed = replace(
        UNDISTURBED,
        traces={0: UNDISTURBED.traces[0], 1: [fact("resumed", 0), *steps(1, 2), fact("done", 2)]},
    )
    gone = replace(GOOD, traces={0: RECOVERED, 1: [fact("resumed", 0), *steps(1, 4)]})
    assert find_violations(replace(SCENARIO, shrink_after=2), gone, undisturbed) == []
    found = find_violations(
        replace(SCENARIO, shrink_after=2),
        replace(gone, traces={0: RECOVERED, 1: steps(1, 1)}),
        undisturbed,
    )
    assert found == ["rank 1 never ran step 2", "1 samples were skipped, e.g. 2"]


def test_adjusted_job_is_compared_by_effective_steps():
    odd = [
        replace(each, loss="nan") if (each.step, each.generation) == (4, 0) else each
        for each in RECOVERED
    ]
    skipped = Adjustments(skip=(StepWindow(4, 4),))
    ledgers = (
        (
            failed(
                RecoveryDecision(action=RecoveryAction.RESTART, reason="again", adjustments=skipped)
            ),
        ),
    )
    adjusted = replace(GOOD, traces={0: odd}, ledgers=ledgers)
    assert find_violations(replace(SCENARIO, adjusted="skip"), adjusted, UNDISTURBED) == []
    only(
        find_violations(SCENARIO, adjusted, UNDISTURBED),
        "different loss in 1 steps, first at step 4",
    )
    only(
        find_violations(replace(SCENARIO, adjusted="micro_batches"), adjusted, UNDISTURBED),
        "no decision that changes micro_batches",
    )


AGAIN = RecoveryDecision(action=RecoveryAction.RESTART, reason="restart 1 of 4")


def failed(decision=AGAIN, **different):
    evidence = (Told(text="exit code -9", origin="launcher"),)
    found = JobFailure(
        at=0.0,
        generation=0,
        code="PROC001",
        cause="rank-killed",
        message="killed",
        evidence=evidence,
    )
    return LedgerRecord(
        event=LedgerEvent.FAILED, at=0.0, failure=replace(found, **different), decision=decision
    )


def test_history_has_cause_evidence_and_decision():
    assert find_violations(SCENARIO, replace(GOOD, ledgers=((failed(),),)), UNDISTURBED) == []
    only(
        find_violations(
            SCENARIO,
            replace(GOOD, ledgers=((LedgerRecord(event=LedgerEvent.BEGUN, at=0.0),),)),
            UNDISTURBED,
        ),
        "records no failure",
    )
    only(
        find_violations(
            SCENARIO, replace(GOOD, ledgers=((failed(cause="peer-lost"),),)), UNDISTURBED
        ),
        "history names PROC001 peer-",
    )
    only(
        find_violations(SCENARIO, replace(GOOD, ledgers=((failed(evidence=()),),)), UNDISTURBED),
        "without evidence",
    )
    assert "the history records a failure without a decision" in find_violations(
        SCENARIO, replace(GOOD, ledgers=((failed(None),),)), UNDISTURBED
    )
    only(
        find_violations(
            replace(SCENARIO, expected_actions=frozenset({"replace"})),
            replace(GOOD, ledgers=((failed(),),)),
            UNDISTURBED,
        ),
        "history records restart; expected replace",
    )


def test_verdicts():
    only(find_violations(SCENARIO, observed(RECOVERED), UNDISTURBED), "no verdict; expected")
    only(
        find_violations(
            SCENARIO, observed(RECOVERED, roots=[KILLED | {"subject": {"rank": 0}}]), UNDISTURBED
        ),
        "names rank 0; expected rank 1",
    )
    only(
        find_violations(
            SCENARIO,
            observed(RECOVERED, roots=[KILLED, KILLED | {"cause": "peer-lost"}]),
            UNDISTURBED,
        ),
        "names peer-lost",
    )
    only(
        find_violations(replace(SCENARIO, causes=frozenset()), GOOD, UNDISTURBED),
        "no failure was expected, but a verdict names rank-killed",
    )


def test_leftovers():
    only(
        find_violations(SCENARIO, replace(GOOD, processes=("77 python train.py",)), UNDISTURBED),
        "77 python train.py",
    )
    only(
        find_violations(SCENARIO, replace(GOOD, shared_memory=("holdfast-x",)), UNDISTURBED),
        "left in shared memory: holdfast-x",
    )
