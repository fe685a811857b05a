import torch.distributed as dist


def is_main_process():
    return not dist.is_initialized() or dist.get_rank() == 0


def synchronize():
    if dist.is_initialized():
        dist.barrier()


def reduce_mean(tensor):
    if dist.is_initialized():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    return tensor
