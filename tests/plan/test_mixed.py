"""GPUs of several kinds share a batch exactly, within memory and in less time than equal shares take."""

import pytest

from holdfast.errors import BadValue
from holdfast.plan.batches import Meeting
from holdfast.plan.hardware import Cluster, parse_mixed
from holdfast.plan.mixed import allotment, joined, kinds, meet_s
from holdfast.plan.models import known
from holdfast.plan.setup import Recompute, Setup, Strategy

FOUR = parse_mixed("2 A100-80G and 2 V100-32G")
MODEL = known("llama3.2-1b")
SETUP = Setup(sequence=2048, recompute=Recompute.FULL)


def test_two_a100_and_two_v100_share_64_exactly():
    found = allotment(MODEL, SETUP, FOUR, 64)
    assert sum(share.samples for share in found.shares) == found.batch == 64
    by_kind = {share.kind: share.samples for share in found.shares}
    assert by_kind["A100-80G"] > 1.5 * by_kind["V100-32G"] > 0
    assert found.meeting is Meeting.MICRO_BATCH
    assert len({len(share.micro_batches) for share in found.shares}) == 1
    assert found.equal_s is not None
    assert found.step_s < 0.8 * found.equal_s


def test_without_meetings_at_each_micro_batch_ranks_accumulate_as_they_like():
    found = allotment(known("gpt2"), Setup(strategy=Strategy.DDP, sequence=1024), FOUR, 64)
    assert found.meeting is Meeting.STEP
    assert sum(share.samples for share in found.shares) == 64


def test_a_kind_goes_as_far_as_its_memory():
    large, small = kinds(MODEL, SETUP, FOUR, 64)
    assert (large.name, large.ranks, small.name, small.ranks) == ("A100-80G", 2, "V100-32G", 2)
    assert 0 < small.most < large.most
    assert large.times_s[0] < small.times_s[0]
    assert kinds(MODEL, SETUP, FOUR, 3)[0].most == 3


def test_what_cannot_be_is_refused():
    with pytest.raises(BadValue, match="not one sequence of 2048 tokens"):
        allotment(known("llama3.1-70b"), SETUP, FOUR, 64)
    with pytest.raises(BadValue, match="unequal shares"):
        allotment(MODEL, Setup(tensor=2), FOUR, 64)
    with pytest.raises(BadValue, match="no parts"):
        joined(())


def test_together_they_are_as_slow_as_the_slowest():
    both = joined(FOUR)
    assert (both.gpus, both.per_node, both.gpu.name) == (4, 2, "V100-32G")
    assert both.links.inside == FOUR[1].links.inside
    assert joined(parse_mixed("8 A100 + 6 V100")).per_node in (1, 2)
    alone = meet_s(MODEL, SETUP, [Cluster.parse("4 A100-80G")])
    assert meet_s(MODEL, SETUP, FOUR) > alone > 0
