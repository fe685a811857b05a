"""What the next start does differently, and that every ladder has an end."""

from holdfast.actions.policy import Course
from tests.actions.policy.failures import failure, play, raised, trouble


def memory(step=10, used=1, **other):
    return failure("oom-on-one-rank-then-timeout", step=step,
                   trouble=trouble("memory", step, micro_batches=used), **other)  # fmt: skip


def pieces(decisions):
    return [each.adjustments.micro_batches for each in decisions if each.restarts]


def test_out_of_memory_means_smaller_pieces_up_to_an_end():
    decisions = play([memory(used=2**at) for at in range(9)])
    assert pieces(decisions) == [2, 4, 8, 16, 32, 64]
    assert [each.adjustments.activation_checkpointing for each in decisions[:2]] == [False, True]
    assert decisions[0].adjustments.fewer_from == 1010
    assert decisions[-1].course is Course.STOP
    assert "the global batch stays the same" in decisions[0].reason


def test_a_later_fault_of_another_kind_keeps_the_pieces():
    assert pieces(play([memory(), failure(step=30), failure(step=50)])) == [2, 2, 2]


def test_fewer_pieces_that_did_not_fit_are_tried_ever_later():
    decisions = play([memory(), memory(1010, saved=1000), memory(2010, saved=2000)])
    assert pieces(decisions) == [2, 2, 2]
    assert [each.adjustments.fewer_from for each in decisions] == [1010, 5010, 18010]
    decisions = play([memory(), *[memory(10**at, saved=10**at) for at in range(4, 9)]])
    assert decisions[-1].adjustments.fewer_from is None
    assert "not tried again" in decisions[-1].reason


def test_a_script_that_asks_for_no_pieces_is_not_given_smaller_ones():
    decisions = play([memory(used=None)] * 5)
    assert pieces(decisions) == [1]
    assert decisions[-1].status == 93


def test_out_of_memory_is_known_by_its_words_too():
    said = raised("all ranks raised OutOfMemoryError: CUDA out of memory", step=3)
    assert pieces(play([said])) == [2]


def test_host_memory_means_fewer_loader_workers():
    decisions = play([failure("host-oom-killed", step=9, loaders=8)] * 9)
    workers = [each.adjustments.loader_workers for each in decisions if each.restarts]
    assert workers[:4] == [4, 2, 1, 0]
    assert decisions[-1].course is Course.STOP
    assert play([failure("host-oom-killed", step=9)])[0].adjustments.loader_workers == 2


def bad(step, first=None, what="nan", **other):
    return failure("mixed-precision-nan", step=step, trouble=trouble(what, step, first), **other)


def test_nan_goes_back_past_the_batch_with_a_lower_scale():
    (decision,) = play([bad(120, saved=115)])
    asked = decision.adjustments
    assert (asked.resume_before, asked.loss_scale) == (119, 0.5)
    assert [step for step in range(110, 130) if asked.skips(step)] == [119, 120]
    assert "nan in the loss at step 120" in decision.reason


def test_a_spike_leaves_out_its_whole_span():
    asked = play([bad(120, 113, "spike")])[0].adjustments
    assert [asked.skips(step) for step in (111, 112, 120, 121)] == [False, True, True, False]


def test_nan_that_comes_back_goes_further_back():
    decisions = play([bad(120, saved=100), bad(123, loaded=100), bad(121, loaded=100), *[bad(122, loaded=100)] * 9])
    firsts = [min(each.adjustments.resume_before, 120) for each in decisions if each.restarts]
    assert firsts[:3] == [119, 105, 1]
    assert decisions[-1].status == 93


def test_going_back_is_forgotten_once_a_newer_checkpoint_is_there():
    decisions = play([bad(120, saved=115), failure(step=119, loaded=110), failure(step=300, saved=250)])
    assert [each.adjustments.resume_before for each in decisions] == [119, 119, None]
    assert [each.adjustments.loss_scale for each in decisions] == [0.5, 0.5, 1.0]
    assert decisions[-1].adjustments.skips(120)  # should it ever be passed again


def test_a_damaged_checkpoint_is_not_loaded_again():
    (decision,) = play([failure("checkpoint-corrupt", loaded=50)])
    assert decision.adjustments.resume_before == 50


def test_every_remedy_says_why():
    decisions = play([memory(), bad(120, saved=115), failure("host-oom-killed", step=130, saved=125)])
    assert len(decisions[-1].adjustments.reasons) == 3
