import os

import torch
import torch.distributed


def multi_init(gpu_ranks):
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu_ranks[local_rank])
    torch.distributed.init_process_group("nccl")
    return torch.distributed.get_rank()


def all_reduce_and_rescale_tensors(tensors, rescale_denom, buffer_size=104857600):
    """All-reduce and rescale tensors at once, in buckets of at most `buffer_size` bytes."""
    buffer_t = tensors[0].new(int(buffer_size / tensors[0].element_size())).zero_()
    buffer = []

    def all_reduce_buffer():
        # copy tensors into buffer_t
        offset = 0
        for t in buffer:
            numel = t.numel()
            buffer_t[offset : offset + numel].copy_(t.view(-1))
            offset += numel

        # all-reduce and rescale
        torch.distributed.all_reduce(buffer_t[:offset], async_op=True)
        buffer_t.div_(rescale_denom)

        # copy all-reduced buffer back into tensors
        offset = 0
        for t in buffer:
            numel = t.numel()
            t.view(-1).copy_(buffer_t[offset : offset + numel])
            offset += numel

    filled = 0
    for t in tensors:
        sz = t.numel() * t.element_size()
        if sz > buffer_size:
            # tensor is bigger than buffer, all-reduce and rescale directly
            torch.distributed.all_reduce(t)
            t.div_(rescale_denom)
        elif filled + sz > buffer_size:
            all_reduce_buffer()
            buffer = [t]
            filled = sz
        else:
            buffer.append(t)
            filled += sz
    if len(buffer) > 0:
        all_reduce_buffer()
