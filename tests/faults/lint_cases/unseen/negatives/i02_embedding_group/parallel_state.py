"""Pipeline and data parallel groups of this process, kept as module state."""
import torch.distributed as dist

_PIPELINE_GROUP = None
_PIPELINE_RANKS = None
_DATA_GROUP = None
_EMBEDDING_GROUP = None
_EMBEDDING_RANKS = None


def initialize_model_parallel(pipeline_size: int) -> None:
    global _PIPELINE_GROUP, _PIPELINE_RANKS, _DATA_GROUP, _EMBEDDING_GROUP, _EMBEDDING_RANKS
    world, rank = dist.get_world_size(), dist.get_rank()
    if world % pipeline_size != 0:
        raise RuntimeError(f"world size {world} is not divisible by {pipeline_size} stages")
    per_stage = world // pipeline_size
    for s in range(pipeline_size):
        ranks = list(range(s * per_stage, (s + 1) * per_stage))
        group = dist.new_group(ranks)
        if rank in ranks:
            _DATA_GROUP = group
    for i in range(per_stage):
        ranks = list(range(i, world, per_stage))
        group = dist.new_group(ranks)
        if rank in ranks:
            _PIPELINE_GROUP, _PIPELINE_RANKS = group, ranks
        ends = [ranks[0], ranks[-1]] if len(ranks) > 1 else ranks
        group = dist.new_group(ends)
        if rank in ends:
            _EMBEDDING_GROUP = group
        if rank in ranks:
            _EMBEDDING_RANKS = ends


def get_pipeline_group():
    assert _PIPELINE_GROUP is not None, "pipeline group is not initialized"
    return _PIPELINE_GROUP


def get_data_group():
    assert _DATA_GROUP is not None, "data group is not initialized"
    return _DATA_GROUP


def get_embedding_group():
    assert _EMBEDDING_GROUP is not None, "embedding group is not initialized"
    return _EMBEDDING_GROUP


def pipeline_world_size() -> int:
    return len(_PIPELINE_RANKS)


def pipeline_rank() -> int:
    return _PIPELINE_RANKS.index(dist.get_rank())


def data_rank() -> int:
    return dist.get_rank(group=get_data_group())


def is_first_stage() -> bool:
    return pipeline_rank() == 0


def is_last_stage() -> bool:
    return pipeline_rank() == pipeline_world_size() - 1


def is_rank_in_embedding_group() -> bool:
    return dist.get_rank() in _EMBEDDING_RANKS


def prev_rank() -> int:
    return _PIPELINE_RANKS[pipeline_rank() - 1]


def next_rank() -> int:
    return _PIPELINE_RANKS[pipeline_rank() + 1]


def last_rank() -> int:
    return _PIPELINE_RANKS[-1]
