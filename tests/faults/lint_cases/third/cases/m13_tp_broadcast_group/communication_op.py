import torch
import torch.distributed as dist

_TP_GROUP = None


def initialize_tensor_parallel(tp_size):
    global _TP_GROUP
    world_size, rank = dist.get_world_size(), dist.get_rank()
    for start in range(0, world_size, tp_size):
        ranks = list(range(start, start + tp_size))
        group = dist.new_group(ranks)
        if rank in ranks:
            _TP_GROUP = group
    return _TP_GROUP


def get_tp_group():
    return _TP_GROUP


def tp_all_reduce(x):
    dist.all_reduce(x, group=_TP_GROUP)
    return x


def broadcast_tensor_dict(tensor_dict=None, src=0, group=None, device="cuda"):
    """Sends a dictionary of tensors and plain values from `src` to the ranks of the group."""
    rank = dist.get_rank()
    if rank == src:
        metadata = []
        for key, value in tensor_dict.items():
            if isinstance(value, torch.Tensor):
                metadata.append((key, (value.dtype, value.size())))
            else:
                metadata.append((key, value))
        dist.broadcast_object_list([metadata], src=src, group=group)
        for value in tensor_dict.values():
            if isinstance(value, torch.Tensor):
                dist.broadcast(value, src=src)
        return tensor_dict
    received = [None]
    dist.broadcast_object_list(received, src=src, group=group)
    result = {}
    for key, value in received[0]:
        if isinstance(value, tuple):
            tensor = torch.empty(value[1], dtype=value[0], device=device)
            dist.broadcast(tensor, src=src)
            result[key] = tensor
        else:
            result[key] = value
    return result
