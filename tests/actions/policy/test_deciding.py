"""What is done after a failure: what the user allows, what was tried before, and whether the job got any further."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.actions.policy import DO_NOT_REQUEUE, Course, OnHang, Past, Terms, decide
from holdfast.actions.policy.deciding import HARD
from tests.actions.policy.failures import MANY, failure, play, raised, trouble

SKIPS = replace(MANY, skip_batches=True)


@pytest.mark.parametrize(
    ("hang", "on_hang", "used", "course", "reason"),
    [
        (True, OnHang.RESTART, 0, Course.RESTART, "restart 1 of 2"),
        (True, OnHang.RESTART, 2, Course.STOP, "stop: all 2 restarts are used"),
        (True, OnHang.STOP, 0, Course.STOP, "stop, as --on-hang stop says"),
        (True, OnHang.REPORT, 0, Course.REPORT, "none, as --on-hang report says: the job is left as it is"),
        (True, OnHang.REPORT, 2, Course.REPORT, "none, as --on-hang report says: the job is left as it is"),
        (False, OnHang.REPORT, 1, Course.RESTART, "restart 2 of 2"),
        (False, OnHang.STOP, 1, Course.RESTART, "restart 2 of 2"),
        (False, OnHang.STOP, 2, Course.STOP, "stop: all 2 restarts are used"),
    ],
)
def test_a_hang_is_the_users_choice_and_a_death_is_the_budgets(hang, on_hang, used, course, reason):
    decision = decide(failure("c", hang=hang, generation=used, host=None), Terms(on_hang=on_hang, restarts=2))
    assert (decision.course, decision.reason, decision.status) == (course, reason, None)


def test_without_a_budget_the_reason_names_the_option():
    assert decide(failure(), Terms()).reason == "stop: --max-restarts allows no restart"


def test_what_happened_before_at_the_same_place_is_said():
    reasons = [each.reason for each in play([raised(saved=10), raised(saved=20), failure(saved=30), raised(saved=40)])]
    assert reasons == [
        "restart 1 of 1000", "restart 2 of 1000; the same happened once before", "restart 3 of 1000",
        "restart 4 of 1000; the same happened 2 times before",
    ]  # fmt: skip


# The same fault, and no progress


def test_the_same_exception_at_the_same_step_is_not_just_tried_again():
    failures = [raised(step=57, saved=50), *[raised(step=57, loaded=50)] * 5]
    first, second, third = play(failures)
    assert (first.course, first.adjustments.resume_before) == (Course.RESTART, None)
    assert (second.adjustments.resume_before, second.adjustments.skip) == (50, ())
    assert "again: resume from a checkpoint before step 50" in second.reason
    allowed = play(failures, SKIPS)[1]
    assert (allowed.adjustments.resume_before, allowed.adjustments.skips(57)) == (50, True)
    assert "leave out that batch" in allowed.reason
    assert (third.course, third.status) == (Course.STOP, DO_NOT_REQUEUE)
    assert "python-exception-on-one-rank came back 2 times" in third.reason
    assert "the newest checkpoint is of step 50" in third.reason


def test_a_script_that_never_comes_to_a_step_is_started_twice():
    decisions = play([raised("ImportError: no module")] * 9)
    assert [each.course for each in decisions] == [Course.RESTART, Course.STOP]
    assert "no step was reached" in decisions[-1].reason


def test_one_rank_or_all_is_the_same_exception():
    other = replace(raised(step=5), cause="python-exception-all-ranks")
    assert play([raised(step=5), other])[-1].course is Course.STOP


def test_an_exception_of_the_world_may_pass_by_itself():
    decisions = play([raised("raised ConnectionResetError: peer", step=5)] * 9)
    assert [each.course for each in decisions] == [Course.RESTART] * 3 + [Course.STOP]


def test_a_rank_killed_at_the_same_step_gets_an_older_checkpoint_then_an_older_one():
    decisions = play([failure(step=57, saved=50), *[failure(step=57, loaded=at) for at in (50, 40, 30)]])
    assert [each.adjustments.resume_before for each in decisions[:3]] == [None, 50, 40]
    assert not any(each.adjustments.skip for each in decisions)
    assert decisions[-1].status == DO_NOT_REQUEUE


def test_then_another_batch_where_the_user_allows_it():
    decisions = play([failure(step=57, saved=50), *[failure(step=57, loaded=50)] * 9], SKIPS)
    asked = [(each.adjustments.resume_before, each.adjustments.skips(57)) for each in decisions[:3]]
    assert asked == [(None, False), (50, False), (50, True)]
    assert decisions[-1].status == DO_NOT_REQUEUE
    assert len(decisions) == 4


def test_restarts_without_a_newer_checkpoint_stop_the_job():
    causes = ["rank-killed", "segfault-in-worker", "peer-lost", "network-fabric-fault", "rank-killed"]
    decisions = play([failure(cause, saved=50, step=60 + 3 * at) for at, cause in enumerate(causes)])
    assert [each.course for each in decisions] == [Course.RESTART] * 3 + [Course.STOP]
    assert decisions[-1].reason == (
        "stop: 3 restarts without a newer checkpoint (the newest checkpoint is of step 50); do not requeue (status 93)"
    )
    assert decisions[-1].status == DO_NOT_REQUEUE == 93


def test_where_nothing_is_said_of_checkpoints_later_steps_are_progress():
    assert {each.course for each in play([failure(step=at) for at in range(0, 400, 10)])} == {Course.RESTART}
    causes = ["rank-killed", "segfault-in-worker", "peer-lost"] * 5
    decisions = play([failure(cause, step=500 - 3 * at) for at, cause in enumerate(causes)])
    assert len(decisions) == 2 * MANY.without_progress + 1
    assert "without a later step (the furthest step is 500)" in decisions[-1].reason


def test_a_script_that_counts_from_zero_is_placed_by_what_it_loaded():
    decisions = play([raised(step=57, counted=57, saved=50), raised(step=7, counted=7, loaded=50)], SKIPS)
    assert decisions[-1].adjustments.skips(57)


def test_no_batch_is_left_out_unasked_where_there_is_nothing_to_go_back_to():
    assert play([raised(step=1, saved=0)] * 3)[-1].course is Course.STOP


def test_a_success_in_between_hides_no_crash_loop():
    terms = Terms(restarts=1000, failures=5, window_s=60.0)
    decisions = play([failure(saved=at) for at in range(50)], terms)
    assert len(decisions) == 6
    assert "6 failures within" in decisions[-1].reason
    assert decisions[-1].status == DO_NOT_REQUEUE
    assert "failure 2 of 5 within" in decisions[1].reason
    rare = [failure(saved=at, at=1000.0 * at) for at in range(50)]
    assert len(play(rare, terms)) == 50


def test_only_restarts_in_a_row_are_waited_for():
    terms = Terms(restarts=9, backoff_s=2.0)
    delays = [each.delay_s for each in play([failure(saved=50, step=60 + 3 * at) for at in range(4)], terms)]
    assert delays == [0.0, 2.0, 4.0, 0.0]
    assert {each.delay_s for each in play([failure(saved=at) for at in range(9)])} == {0.0}


# Hosts


def hang(host="b", rank=2, **other):
    return failure("stalled-outside-collectives", hang=True, host=host, rank=rank, **other)


def test_a_host_that_hangs_twice_is_left_out_where_others_suffice():
    first, second = play([hang(saved=10), hang(saved=20)], Terms(restarts=9, least_nodes=1))
    assert (first.course, first.suspects) == (Course.RESTART, ("b",))
    assert (second.course, second.excluded, second.nodes) == (Course.EXCLUDE, ("b",), (1,))


def test_it_stays_where_no_other_host_stands_by():
    decisions = play([hang(saved=10), hang(saved=20)], Terms(restarts=9, least_nodes=2))
    assert [each.course for each in decisions] == [Course.RESTART] * 2
    assert "should be left out, and no other host stands by" in decisions[1].reason
    spare = play([hang(saved=10), hang(saved=20, waiting=1)], Terms(restarts=9, least_nodes=2))
    assert spare[1].course is Course.EXCLUDE


def test_without_the_host_comes_before_another_checkpoint():
    twice = [hang(step=57, saved=50), hang(step=57, loaded=50)]
    second = play(twice, Terms(restarts=9))[1]
    assert (second.course, second.adjustments.resume_before) == (Course.EXCLUDE, None)
    second = play(twice, Terms(restarts=9, least_nodes=2))[1]
    assert (second.course, second.adjustments.resume_before) == (Course.RESTART, 50)
    assert "no other host stands by; stalled-outside-collectives at step 57 again" in second.reason


def test_hangs_of_two_hosts_blame_neither():
    decisions = play([hang(saved=10), hang("a", 0, saved=20)], Terms(restarts=9))
    assert [each.course for each in decisions] == [Course.RESTART] * 2


def test_a_host_whose_gpu_is_broken_goes_at_once():
    assert play([failure("gpu-fell-off-bus-xid-ecc")])[0].excluded == ("b",)


def test_what_the_code_does_wrong_blames_no_host():
    decisions = play([failure("rank-guarded-collective", hang=True, saved=at) for at in (10, 20, 30)])
    assert {(each.course, each.suspects) for each in decisions} == {(Course.RESTART, ())}


def test_two_nodes_on_hosts_of_one_name_are_two():
    def hangs(agent, **other):
        made = hang(**other)
        return replace(made, scene=replace(made.scene, namesakes={2: agent}))

    terms = Terms(restarts=9)
    first, other, again = play([hangs("a1", saved=10), hangs("b2", saved=20), hangs("a1", saved=30)], terms)
    assert [each.course for each in (first, other)] == [Course.RESTART] * 2
    assert again.course is Course.EXCLUDE


def test_a_slow_host_is_told_and_left_out_at_the_second_time_where_the_user_says_so():
    slow, told_to = failure("straggler", saved=7), Terms(restarts=9, exclude_stragglers=True)
    assert decide(slow, MANY).course is Course.REPORT
    first = decide(slow, told_to)
    assert (first.course, first.suspects, first.excluded) == (Course.REPORT, ("b",), ())
    warned = [Past(slow, first)]
    second = decide(slow, told_to, warned)
    assert (second.course, second.excluded, second.nodes) == (Course.EXCLUDE, ("b",), (1,))
    assert decide(slow, MANY, warned).course is Course.REPORT


def test_a_slow_host_never_ends_a_job_nor_counts_as_a_failure():
    told_to = Terms(restarts=3, exclude_stragglers=True, least_nodes=2, failures=1)
    slow = failure("straggler", saved=7)
    warned = [Past(slow, decide(slow, told_to))] * 5
    assert "no other host stands by" in decide(slow, told_to, warned).reason
    late = replace(slow, generation=3)
    assert "no further restart" in decide(late, told_to, [Past(late, decide(late, told_to))]).reason
    died = decide(failure(saved=7), told_to, warned)
    assert (died.course, died.delay_s) == (Course.RESTART, 0.0)


def test_a_slow_host_that_broke_the_job_is_left_out_only_where_the_user_says_so():
    broke = failure("watchdog-timeout-straggler", dead=(0,))
    assert decide(broke, MANY).course is Course.RESTART
    assert decide(broke, Terms(restarts=9, exclude_stragglers=True)).excluded == ("b",)


# In place, preempted


def test_a_dead_rank_is_replaced_among_the_survivors_once_without_progress():
    dead = failure(in_place=True, dead=(2,), saved=10)
    first, second = play([dead, dead])
    assert (first.course, first.ranks) == (Course.REPLACE, (2,))
    assert second.course is Course.RESTART
    assert decide(raised(in_place=True, dead=(2,)), MANY).course is Course.RESTART


def test_who_was_preempted_leaves_with_the_status_of_that():
    decision = decide(failure("exit-nonzero", preempted=143), MANY)
    assert (decision.course, decision.status) == (Course.STOP, 143)
    hangs_in_the_end = decide(failure("rank-missing-collective", preempted=143, hang=True), MANY)
    assert (hangs_in_the_end.course, hangs_in_the_end.status) == (Course.STOP, 143)


# Whatever happens


CAUSES = ("rank-killed", "host-oom-killed", "oom-on-one-rank-then-timeout", "mixed-precision-nan", "checkpoint-corrupt",
          "stalled-outside-collectives", "gpu-hw-fault", "python-exception-all-ranks", "", "straggler",
          "no-such")  # fmt: skip
STEPS = st.none() | st.integers(0, 40)
ANY = st.builds(
    failure, st.sampled_from(CAUSES), step=STEPS, saved=st.none() | st.integers(0, 40), loaded=STEPS,
    counted=st.integers(0, 40), hang=st.booleans(), host=st.sampled_from([None, "a", "b"]),
    loaders=st.none() | st.integers(0, 8), dead=st.just((2,)), in_place=st.booleans(),
    trouble=st.none() | st.builds(trouble, st.sampled_from(["nan", "spike", "memory"]), st.integers(0, 40),
                                  micro_batches=st.none() | st.integers(1, 64)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(ANY, max_size=12), st.integers(0, 9), st.integers(1, 4), st.none() | st.integers(1, 9))
def test_it_never_restarts_for_ever(failures, restarts, idle, most):
    terms = Terms(restarts=restarts, without_progress=idle, failures=most, exclude_stragglers=True)
    decisions = play(failures, terms)
    assert sum(each.restarts for each in decisions) <= restarts
    assert most is None or len(decisions) <= most + 1
    for each in decisions:
        assert each.reason
        assert each.restarts or each.course in (Course.STOP, Course.REPORT)
        assert 0 <= each.delay_s <= 300


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY, min_size=1, max_size=4), st.integers(1, 4))
def test_without_progress_it_ends_whatever_remedies_there_are(failures, idle):
    stuck = [replace(each, scene=replace(each.scene, saved=7, loaded=None)) for each in failures]
    decisions = play(stuck * (HARD * idle + 2), Terms(restarts=10_000, without_progress=idle, exclude_stragglers=True))
    assert len(decisions) <= HARD * idle + 1
    assert decisions[-1].course is Course.STOP


@settings(max_examples=40, deadline=None)
@given(st.lists(ANY, max_size=8))
def test_a_job_that_gets_further_is_always_started_again(failures):
    going = [replace(each, scene=replace(each.scene, saved=100 * at)) for at, each in enumerate(failures, 1)]
    decisions = play(going, Terms(restarts=10_000, exclude_stragglers=True))
    assert len(decisions) == len(going)
    assert all(each.restarts for each in decisions)


@settings(max_examples=40, deadline=None)
@given(ANY, st.lists(ANY, max_size=6))
def test_the_same_ledger_gives_the_same_decision(now, before):
    past = [Past(each, decide(each, MANY)) for each in before]
    assert decide(now, MANY, past) == decide(now, MANY, list(past))
