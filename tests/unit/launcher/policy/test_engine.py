"""Decisions after a failure, from the user's options, past attempts and the job's progress."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.failures import PastFailure, RecoveryAction
from holdfast.core.findings import Level
from holdfast.launcher.policy import DO_NOT_REQUEUE, OnHang, RecoveryOptions, decide
from holdfast.launcher.policy.engine import IDLE_FACTOR
from tests.hypothesis_profiles import examples
from tests.unit.launcher.policy.failures import MANY, decide_all, failure, raised, trouble

SKIPS = replace(MANY, skip_batches=True)


@pytest.mark.parametrize(
    ("hang", "on_hang", "used", "action", "reason"),
    [
        (True, OnHang.RESTART, 0, RecoveryAction.RESTART, "restart 1 of 2"),
        (True, OnHang.RESTART, 2, RecoveryAction.STOP, "stop: all 2 restarts are used"),
        (True, OnHang.STOP, 0, RecoveryAction.STOP, "stop (--on-hang stop)"),
        (
            True,
            OnHang.REPORT,
            0,
            RecoveryAction.REPORT,
            "none: --on-hang report leaves the job as it is",
        ),
        (
            True,
            OnHang.REPORT,
            2,
            RecoveryAction.REPORT,
            "none: --on-hang report leaves the job as it is",
        ),
        (False, OnHang.REPORT, 1, RecoveryAction.RESTART, "restart 2 of 2"),
        (False, OnHang.STOP, 1, RecoveryAction.RESTART, "restart 2 of 2"),
        (False, OnHang.STOP, 2, RecoveryAction.STOP, "stop: all 2 restarts are used"),
    ],
)
def test_on_hang_decides_about_a_hang_and_max_restarts_about_a_crash(
    hang, on_hang, used, action, reason
):
    decision = decide(
        failure("c", hang=hang, generation=used, host=None),
        RecoveryOptions(on_hang=on_hang, max_restarts=2),
    )
    assert (decision.action, decision.reason, decision.status) == (action, reason, None)


def test_without_a_budget_the_reason_names_the_option():
    assert decide(failure(), RecoveryOptions()).reason == "stop: --max-restarts allows no restart"


def test_the_reason_counts_earlier_failures_with_the_same_fault():
    reasons = [
        each.reason
        for each in decide_all(
            [raised(saved=10), raised(saved=20), failure(saved=30), raised(saved=40)]
        )
    ]
    assert reasons == [
        "restart 1 of 1000",
        "restart 2 of 1000; the same fault occurred once before",
        "restart 3 of 1000",
        "restart 4 of 1000; the same fault occurred 2 times before",
    ]


# The same fault, and no progress


def test_the_same_exception_at_the_same_step_resumes_from_an_older_checkpoint():
    failures = [raised(step=57, saved=50), *[raised(step=57, loaded=50)] * 5]
    first, second, third = decide_all(failures)
    assert (first.action, first.adjustments.resume_before) == (RecoveryAction.RESTART, None)
    assert (second.adjustments.resume_before, second.adjustments.skip) == (50, ())
    assert "again: resume from a checkpoint before step 50" in second.reason
    allowed = decide_all(failures, SKIPS)[1]
    assert (allowed.adjustments.resume_before, allowed.adjustments.skips(57)) == (50, True)
    assert "skip that batch" in allowed.reason
    assert (third.action, third.status) == (RecoveryAction.STOP, DO_NOT_REQUEUE)
    assert "python-exception-on-one-rank recurred 2 times" in third.reason
    assert "newest checkpoint: step 50" in third.reason


def test_a_script_that_never_reaches_a_step_is_started_at_most_twice():
    decisions = decide_all([raised("ImportError: no module")] * 9)
    assert [each.action for each in decisions] == [RecoveryAction.RESTART, RecoveryAction.STOP]
    assert "no step was reached" in decisions[-1].reason


def test_an_exception_on_one_rank_and_on_all_ranks_is_the_same_fault():
    other = replace(raised(step=5), cause="python-exception-all-ranks")
    assert decide_all([raised(step=5), other])[-1].action is RecoveryAction.STOP


def test_an_exception_with_an_external_cause_is_retried():
    decisions = decide_all([raised("raised ConnectionResetError: peer", step=5)] * 9)
    assert [each.action for each in decisions] == [RecoveryAction.RESTART] * 3 + [
        RecoveryAction.STOP
    ]


def test_a_rank_killed_at_the_same_step_resumes_from_older_checkpoints_each_time():
    decisions = decide_all(
        [failure(step=57, saved=50), *[failure(step=57, loaded=at) for at in (50, 40, 30)]]
    )
    assert [each.adjustments.resume_before for each in decisions[:3]] == [None, 50, 40]
    assert not any(each.adjustments.skip for each in decisions)
    assert decisions[-1].status == DO_NOT_REQUEUE


def test_skip_batches_skips_the_batch_after_an_older_checkpoint_failed():
    decisions = decide_all([failure(step=57, saved=50), *[failure(step=57, loaded=50)] * 9], SKIPS)
    requested = [
        (each.adjustments.resume_before, each.adjustments.skips(57)) for each in decisions[:3]
    ]
    assert requested == [(None, False), (50, False), (50, True)]
    assert decisions[-1].status == DO_NOT_REQUEUE
    assert len(decisions) == 4


def test_restarts_without_a_newer_checkpoint_stop_the_job():
    causes = [
        "rank-killed",
        "segfault-in-worker",
        "peer-lost",
        "network-fabric-fault",
        "rank-killed",
    ]
    decisions = decide_all(
        [failure(cause, saved=50, step=60 + 3 * at) for at, cause in enumerate(causes)]
    )
    assert [each.action for each in decisions] == [RecoveryAction.RESTART] * 3 + [
        RecoveryAction.STOP
    ]
    assert decisions[-1].reason == (
        "stop: 3 restarts without a newer checkpoint (newest checkpoint: step 50); do not requeue (status 93)"
    )
    assert decisions[-1].status == DO_NOT_REQUEUE == 93


def test_without_checkpoints_later_steps_are_progress():
    assert {each.action for each in decide_all([failure(step=at) for at in range(0, 400, 10)])} == {
        RecoveryAction.RESTART
    }
    causes = ["rank-killed", "segfault-in-worker", "peer-lost"] * 5
    decisions = decide_all([failure(cause, step=500 - 3 * at) for at, cause in enumerate(causes)])
    assert len(decisions) == 2 * MANY.max_idle + 1
    assert "without a later step (furthest step: 500)" in decisions[-1].reason


def test_the_loaded_checkpoint_is_added_to_steps_counted_from_zero():
    decisions = decide_all(
        [raised(step=57, counted=57, saved=50), raised(step=7, counted=7, loaded=50)], SKIPS
    )
    assert decisions[-1].adjustments.skips(57)


def test_no_batch_is_skipped_without_skip_batches():
    assert decide_all([raised(step=1, saved=0)] * 3)[-1].action is RecoveryAction.STOP


def test_max_failures_stops_a_crash_loop_that_makes_progress():
    terms = RecoveryOptions(max_restarts=1000, max_failures=5, window_s=60.0)
    decisions = decide_all([failure(saved=at) for at in range(50)], terms)
    assert len(decisions) == 6
    assert "6 failures within" in decisions[-1].reason
    assert decisions[-1].status == DO_NOT_REQUEUE
    assert "failure 2 of 5 within" in decisions[1].reason
    rare = [failure(saved=at, at=1000.0 * at) for at in range(50)]
    assert len(decide_all(rare, terms)) == 50


def test_backoff_applies_only_to_restarts_without_progress():
    terms = RecoveryOptions(max_restarts=9, backoff_s=2.0)
    delays = [
        each.delay_s
        for each in decide_all([failure(saved=50, step=60 + 3 * at) for at in range(4)], terms)
    ]
    assert delays == [0.0, 2.0, 4.0, 0.0]
    assert {each.delay_s for each in decide_all([failure(saved=at) for at in range(9)])} == {0.0}


# Hosts


def hang(host="b", rank=2, **other):
    return failure("stalled-outside-collectives", hang=True, host=host, rank=rank, **other)


def test_an_inconclusive_verdict_makes_no_host_suspect():
    (decision,) = decide_all([failure("peer-lost", hang=True, level=Level.UNKNOWN)])
    assert (decision.action, decision.suspects) == (RecoveryAction.RESTART, ())


def test_a_host_that_hangs_twice_is_excluded_if_enough_nodes_remain():
    first, second = decide_all(
        [hang(saved=10), hang(saved=20)], RecoveryOptions(max_restarts=9, min_nodes=1)
    )
    assert (first.action, first.suspects) == (RecoveryAction.RESTART, ("b",))
    assert (second.action, second.excluded, second.nodes) == (RecoveryAction.EXCLUDE, ("b",), (1,))


def test_a_host_stays_if_too_few_nodes_would_remain():
    decisions = decide_all(
        [hang(saved=10), hang(saved=20)], RecoveryOptions(max_restarts=9, min_nodes=2)
    )
    assert [each.action for each in decisions] == [RecoveryAction.RESTART] * 2
    assert "should be excluded, but no other host is available" in decisions[1].reason
    spare = decide_all(
        [hang(saved=10), hang(saved=20, waiting=1)], RecoveryOptions(max_restarts=9, min_nodes=2)
    )
    assert spare[1].action is RecoveryAction.EXCLUDE


def test_a_host_is_excluded_before_an_older_checkpoint_is_tried():
    twice = [hang(step=57, saved=50), hang(step=57, loaded=50)]
    second = decide_all(twice, RecoveryOptions(max_restarts=9))[1]
    assert (second.action, second.adjustments.resume_before) == (RecoveryAction.EXCLUDE, None)
    second = decide_all(twice, RecoveryOptions(max_restarts=9, min_nodes=2))[1]
    assert (second.action, second.adjustments.resume_before) == (RecoveryAction.RESTART, 50)
    assert (
        "no other host is available; stalled-outside-collectives at step 57 again" in second.reason
    )


def test_one_hang_each_on_two_hosts_excludes_neither():
    decisions = decide_all(
        [hang(saved=10), hang("a", 0, saved=20)], RecoveryOptions(max_restarts=9)
    )
    assert [each.action for each in decisions] == [RecoveryAction.RESTART] * 2


def test_a_host_with_a_broken_gpu_is_excluded_at_once():
    assert decide_all([failure("gpu-fell-off-bus-xid-ecc")])[0].excluded == ("b",)


def test_a_code_fault_does_not_exclude_a_host():
    decisions = decide_all(
        [failure("rank-guarded-collective", hang=True, saved=at) for at in (10, 20, 30)]
    )
    assert {(each.action, each.suspects) for each in decisions} == {(RecoveryAction.RESTART, ())}


def test_two_nodes_with_the_same_host_name_are_distinguished():
    def hangs(agent, **other):
        hang_failure = hang(**other)
        return replace(
            hang_failure, job_state=replace(hang_failure.job_state, namesakes={2: agent})
        )

    terms = RecoveryOptions(max_restarts=9)
    first, other, again = decide_all(
        [hangs("a1", saved=10), hangs("b2", saved=20), hangs("a1", saved=30)], terms
    )
    assert [each.action for each in (first, other)] == [RecoveryAction.RESTART] * 2
    assert again.action is RecoveryAction.EXCLUDE


def test_a_slow_host_is_reported_then_excluded_with_exclude_stragglers():
    slow, exclude = (
        failure("straggler", saved=7),
        RecoveryOptions(max_restarts=9, exclude_stragglers=True),
    )
    assert decide(slow, MANY).action is RecoveryAction.REPORT
    first = decide(slow, exclude)
    assert (first.action, first.suspects, first.excluded) == (RecoveryAction.REPORT, ("b",), ())
    warned = [PastFailure(slow, first)]
    second = decide(slow, exclude, warned)
    assert (second.action, second.excluded, second.nodes) == (RecoveryAction.EXCLUDE, ("b",), (1,))
    assert decide(slow, MANY, warned).action is RecoveryAction.REPORT


def test_a_slow_host_neither_stops_a_job_nor_counts_as_a_failure():
    exclude = RecoveryOptions(max_restarts=3, exclude_stragglers=True, min_nodes=2, max_failures=1)
    slow = failure("straggler", saved=7)
    warned = [PastFailure(slow, decide(slow, exclude))] * 5
    assert "no other host is available" in decide(slow, exclude, warned).reason
    late = replace(slow, generation=3)
    assert (
        "no further restart"
        in decide(late, exclude, [PastFailure(late, decide(late, exclude))]).reason
    )
    died = decide(failure(saved=7), exclude, warned)
    assert (died.action, died.delay_s) == (RecoveryAction.RESTART, 0.0)


def test_a_slow_host_that_caused_a_failure_is_excluded_only_with_exclude_stragglers():
    broke = failure("watchdog-timeout-straggler", dead=(0,))
    assert decide(broke, MANY).action is RecoveryAction.RESTART
    assert decide(broke, RecoveryOptions(max_restarts=9, exclude_stragglers=True)).excluded == (
        "b",
    )


# In-process restart and preemption


def test_a_dead_rank_is_replaced_in_place_at_most_once_without_progress():
    dead = failure(in_place=True, dead=(2,), saved=10)
    first, second = decide_all([dead, dead])
    assert (first.action, first.ranks) == (RecoveryAction.REPLACE, (2,))
    assert second.action is RecoveryAction.RESTART
    assert decide(raised(in_place=True, dead=(2,)), MANY).action is RecoveryAction.RESTART


def test_a_preempted_job_stops_with_the_status_of_its_ranks():
    decision = decide(failure("exit-nonzero", preempted=143), MANY)
    assert (decision.action, decision.status) == (RecoveryAction.STOP, 143)
    hangs_in_the_end = decide(failure("rank-missing-collective", preempted=143, hang=True), MANY)
    assert (hangs_in_the_end.action, hangs_in_the_end.status) == (RecoveryAction.STOP, 143)


# Properties


CAUSES = (
    "rank-killed",
    "host-oom-killed",
    "oom-on-one-rank-then-timeout",
    "mixed-precision-nan",
    "checkpoint-corrupt",
    "stalled-outside-collectives",
    "gpu-hw-fault",
    "python-exception-all-ranks",
    "",
    "straggler",
    "no-such",
)
STEPS = st.none() | st.integers(0, 40)
ANY = st.builds(
    failure,
    st.sampled_from(CAUSES),
    step=STEPS,
    saved=st.none() | st.integers(0, 40),
    loaded=STEPS,
    counted=st.integers(0, 40),
    hang=st.booleans(),
    host=st.sampled_from([None, "a", "b"]),
    loaders=st.none() | st.integers(0, 8),
    dead=st.just((2,)),
    in_place=st.booleans(),
    trouble=st.none()
    | st.builds(
        trouble,
        st.sampled_from(["nan", "spike", "memory"]),
        st.integers(0, 40),
        micro_batches=st.none() | st.integers(1, 64),
    ),
)


@settings(max_examples=examples(60))
@given(
    st.lists(ANY, max_size=12), st.integers(0, 9), st.integers(1, 4), st.none() | st.integers(1, 9)
)
def test_restarts_are_bounded_for_any_failures(failures, restarts, idle, most):
    terms = RecoveryOptions(
        max_restarts=restarts, max_idle=idle, max_failures=most, exclude_stragglers=True
    )
    decisions = decide_all(failures, terms)
    assert sum(each.restarts for each in decisions) <= restarts
    assert most is None or len(decisions) <= most + 1
    for each in decisions:
        assert each.reason
        assert each.restarts or each.action in (RecoveryAction.STOP, RecoveryAction.REPORT)
        assert 0 <= each.delay_s <= 300


@settings(max_examples=examples(40))
@given(st.lists(ANY, min_size=1, max_size=4), st.integers(1, 4))
def test_a_job_without_progress_stops_for_any_failures(failures, idle):
    stuck = [
        replace(each, job_state=replace(each.job_state, saved=7, loaded=None)) for each in failures
    ]
    decisions = decide_all(
        stuck * (IDLE_FACTOR * idle + 2),
        RecoveryOptions(max_restarts=10_000, max_idle=idle, exclude_stragglers=True),
    )
    assert len(decisions) <= IDLE_FACTOR * idle + 1
    assert decisions[-1].action is RecoveryAction.STOP


@settings(max_examples=examples(40))
@given(st.lists(ANY, max_size=8))
def test_a_job_with_progress_is_always_restarted(failures):
    going = [
        replace(each, job_state=replace(each.job_state, saved=100 * at))
        for at, each in enumerate(failures, 1)
    ]
    decisions = decide_all(going, RecoveryOptions(max_restarts=10_000, exclude_stragglers=True))
    assert len(decisions) == len(going)
    assert all(each.restarts for each in decisions)


@settings(max_examples=examples(40))
@given(ANY, st.lists(ANY, max_size=6))
def test_the_same_ledger_gives_the_same_decision(now, before):
    past = [PastFailure(each, decide(each, MANY)) for each in before]
    assert decide(now, MANY, past) == decide(now, MANY, list(past))
