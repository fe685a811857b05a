"""Adjustments of the next start; every sequence of remedies ends."""

from holdfast.core.failures import RecoveryAction
from tests.unit.launcher.policy.failures import decide_all, failure, raised, trouble


def memory(step=10, used=1, **other):
    return failure(
        "oom-on-one-rank-then-timeout",
        step=step,
        trouble=trouble("memory", step, micro_batches=used),
        **other,
    )


def micro_batches(decisions):
    return [each.adjustments.micro_batches for each in decisions if each.restarts]


def test_out_of_memory_doubles_micro_batches_up_to_64():
    decisions = decide_all([memory(used=2**at) for at in range(9)])
    assert micro_batches(decisions) == [2, 4, 8, 16, 32, 64]
    assert [each.adjustments.activation_checkpointing for each in decisions[:2]] == [False, True]
    assert decisions[0].adjustments.fewer_from == 1010
    assert decisions[-1].action is RecoveryAction.STOP
    assert "the global batch stays the same" in decisions[0].reason


def test_a_later_fault_of_another_kind_keeps_the_micro_batches():
    assert micro_batches(decide_all([memory(), failure(step=30), failure(step=50)])) == [2, 2, 2]


def test_fewer_micro_batches_that_did_not_fit_are_retried_at_growing_intervals():
    decisions = decide_all([memory(), memory(1010, saved=1000), memory(2010, saved=2000)])
    assert micro_batches(decisions) == [2, 2, 2]
    assert [each.adjustments.fewer_from for each in decisions] == [1010, 5010, 18010]
    decisions = decide_all([memory(), *[memory(10**at, saved=10**at) for at in range(4, 9)]])
    assert decisions[-1].adjustments.fewer_from is None
    assert "not tried again" in decisions[-1].reason


def test_a_script_without_micro_batches_is_not_restarted_with_smaller_ones():
    decisions = decide_all([memory(used=None)] * 5)
    assert micro_batches(decisions) == [1]
    assert decisions[-1].status == 93


def test_out_of_memory_is_recognized_by_its_message():
    by_message = raised("all ranks raised OutOfMemoryError: CUDA out of memory", step=3)
    assert micro_batches(decide_all([by_message])) == [2]


def test_out_of_host_memory_halves_loader_workers():
    decisions = decide_all([failure("host-oom-killed", step=9, loaders=8)] * 9)
    workers = [each.adjustments.loader_workers for each in decisions if each.restarts]
    assert workers[:4] == [4, 2, 1, 0]
    assert decisions[-1].action is RecoveryAction.STOP
    assert decide_all([failure("host-oom-killed", step=9)])[0].adjustments.loader_workers == 2


def bad(step, first=None, what="nan", **other):
    return failure("mixed-precision-nan", step=step, trouble=trouble(what, step, first), **other)


def test_nan_resumes_before_the_batch_skips_it_and_lowers_the_loss_scale():
    (decision,) = decide_all([bad(120, saved=115)])
    adjustments = decision.adjustments
    assert (adjustments.resume_before, adjustments.loss_scale) == (119, 0.5)
    assert [step for step in range(110, 130) if adjustments.skips(step)] == [119, 120]
    assert "nan in the loss at step 120" in decision.reason


def test_all_batches_of_a_spike_are_skipped():
    adjustments = decide_all([bad(120, 113, "spike")])[0].adjustments
    assert [adjustments.skips(step) for step in (111, 112, 120, 121)] == [False, True, True, False]


def test_nan_that_recurs_resumes_further_back():
    decisions = decide_all(
        [
            bad(120, saved=100),
            bad(123, loaded=100),
            bad(121, loaded=100),
            *[bad(122, loaded=100)] * 9,
        ]
    )
    firsts = [min(each.adjustments.resume_before, 120) for each in decisions if each.restarts]
    assert firsts[:3] == [119, 105, 1]
    assert decisions[-1].status == 93


def test_resume_before_ends_with_a_newer_checkpoint():
    decisions = decide_all(
        [bad(120, saved=115), failure(step=119, loaded=110), failure(step=300, saved=250)]
    )
    assert [each.adjustments.resume_before for each in decisions] == [119, 119, None]
    assert [each.adjustments.loss_scale for each in decisions] == [0.5, 0.5, 1.0]
    assert decisions[-1].adjustments.skips(120)  # if training reaches it again


def test_a_damaged_checkpoint_is_not_loaded_again():
    (decision,) = decide_all([failure("checkpoint-corrupt", loaded=50)])
    assert decision.adjustments.resume_before == 50


def test_every_remedy_has_a_reason():
    decisions = decide_all(
        [memory(), bad(120, saved=115), failure("host-oom-killed", step=130, saved=125)]
    )
    assert len(decisions[-1].adjustments.reasons) == 3
