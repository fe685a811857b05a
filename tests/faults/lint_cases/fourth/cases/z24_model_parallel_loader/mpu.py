import torch.distributed as dist

_TENSOR_GROUP = None
_DATA_GROUP = None


def initialize_model_parallel(tensor_size):
    """Neighbouring ranks share one replica of the model."""
    global _TENSOR_GROUP, _DATA_GROUP
    rank, world = dist.get_rank(), dist.get_world_size()
    for start in range(0, world, tensor_size):
        ranks = list(range(start, start + tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _TENSOR_GROUP = group
    for offset in range(tensor_size):
        ranks = list(range(offset, world, tensor_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _DATA_GROUP = group


def get_tensor_model_parallel_group():
    return _TENSOR_GROUP


def get_data_parallel_group():
    return _DATA_GROUP


def get_data_parallel_rank():
    return dist.get_rank(group=_DATA_GROUP)


def get_data_parallel_world_size():
    return dist.get_world_size(group=_DATA_GROUP)
