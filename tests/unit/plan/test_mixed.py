"""GPUs of several kinds split a batch exactly, within memory, and faster than with equal shares."""

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster, parse_clusters
from holdfast.plan.mixed import allocate_mixed_batch, join_clusters, profile_gpu_kinds, sync_time
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import ActivationCheckpointing, ShardingStrategy, TrainingSetup
from holdfast.training.heterogeneous.batch_allocation import SyncPoint

MIXED_CLUSTERS = parse_clusters("2 A100-80G and 2 V100-32G")
MODEL = get_known_model("llama3.2-1b")
SETUP = TrainingSetup(sequence=2048, recompute=ActivationCheckpointing.FULL)


def test_two_a100_and_two_v100_split_64_samples_exactly():
    result = allocate_mixed_batch(MODEL, SETUP, MIXED_CLUSTERS, 64)
    assert sum(share.samples for share in result.shares) == result.batch == 64
    by_kind = {share.kind: share.samples for share in result.shares}
    assert by_kind["A100-80G"] > 1.5 * by_kind["V100-32G"] > 0
    assert result.meeting is SyncPoint.MICRO_BATCH
    assert len({len(share.micro_batches) for share in result.shares}) == 1
    assert result.equal_s is not None
    assert result.step_s < 0.8 * result.equal_s


def test_accumulation_differs_without_micro_batch_sync():
    result = allocate_mixed_batch(
        get_known_model("gpt2"),
        TrainingSetup(strategy=ShardingStrategy.DDP, sequence=1024),
        MIXED_CLUSTERS,
        64,
    )
    assert result.meeting is SyncPoint.STEP
    assert sum(share.samples for share in result.shares) == 64


def test_micro_batches_are_limited_by_memory():
    large, small = profile_gpu_kinds(MODEL, SETUP, MIXED_CLUSTERS, 64)
    assert (large.name, large.ranks, small.name, small.ranks) == ("A100-80G", 2, "V100-32G", 2)
    assert 0 < small.most < large.most
    assert large.times_s[0] < small.times_s[0]
    assert profile_gpu_kinds(MODEL, SETUP, MIXED_CLUSTERS, 3)[0].most == 3


def test_invalid_input_is_rejected():
    with pytest.raises(InvalidValue, match="no sequence of 2048 tokens"):
        allocate_mixed_batch(get_known_model("llama3.1-70b"), SETUP, MIXED_CLUSTERS, 64)
    with pytest.raises(InvalidValue, match="unequal shares"):
        allocate_mixed_batch(MODEL, TrainingSetup(tensor=2), MIXED_CLUSTERS, 64)
    with pytest.raises(InvalidValue, match="list of clusters"):
        join_clusters(())


def test_joined_cluster_is_as_slow_as_the_slowest():
    joined = join_clusters(MIXED_CLUSTERS)
    assert (joined.gpus, joined.per_node, joined.gpu.name) == (4, 2, "V100-32G")
    assert joined.links.intra_node == MIXED_CLUSTERS[1].links.intra_node
    assert join_clusters(parse_clusters("8 A100 + 6 V100")).per_node in (1, 2)
    single_kind = sync_time(MODEL, SETUP, [Cluster.parse("4 A100-80G")])
    assert sync_time(MODEL, SETUP, MIXED_CLUSTERS) > single_kind > 0
