"""Sharding of data by local rank."""

import pytest

from tests.unit.lint.programs import program_from_sources

PROGRAM = """\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler
%s
class Packed(torch.utils.data.Sampler):
    def __init__(self, lengths, num_replicas, rank):
        self.rank = rank
def loader_of(data, shard, num_shards):
    return Packed(data, num_shards, shard)
def main(data, env, rank):
    local_rank = int(os.environ["LOCAL_RANK"])
    world_size = dist.get_world_size()
    local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
    return (
        %s
    )
"""
WRONG = [
    "DistributedSampler(data, num_replicas=world_size, rank=local_rank)",
    "DistributedSampler(data, dist.get_world_size(), env.local_rank)",
    "Packed(data, world_size, local_rank)",
    "loader_of(data, env.local_rank, env.world_size)",
    "data.shard(num_shards=world_size, index=local_rank)",
]
RIGHT = [
    "DistributedSampler(data, num_replicas=env.mesh.world_size, rank=env.mesh.get_local_rank())",
    "DistributedSampler(data, num_replicas=world_size, rank=dist.get_rank())",
    "DistributedSampler(data, num_replicas=local_world_size, rank=local_rank)",
    "DistributedSampler(data, num_replicas=env.local_world_size, rank=env.local_rank)",
    "Packed(data, world_size, rank)",
    "data.shard(num_shards=torch.cuda.device_count(), index=local_rank)",
    "torch.nn.parallel.DistributedDataParallel(data, device_ids=[local_rank])",
    "dist.init_process_group('nccl', rank=local_rank, world_size=world_size)",
]


def analyze(text, more=""):
    divergences = program_from_sources({"main": ("main.py", PROGRAM % (more, text))}).analyze()
    return [divergence.location.line for divergence in divergences if divergence.kind == "share"]


@pytest.mark.parametrize("text", WRONG)
def test_sharding_by_local_rank_is_found(text):
    assert analyze(text) == [16]


@pytest.mark.parametrize("text", RIGHT)
def test_sharding_by_global_rank_or_node_is_fine(text):
    assert analyze(text) == []


def test_spawned_processes_are_on_one_node():
    assert analyze(WRONG[0], "torch.multiprocessing.spawn(print)") == []
