import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather_rows(rows):
    """Concatenates 2-d tensors of different length from all ranks, in rank order."""
    world = dist.get_world_size()
    own = torch.tensor([rows.size(0)], device=rows.device)
    sizes = [torch.zeros_like(own) for _ in range(world)]
    dist.all_gather(sizes, own)
    sizes = [int(s) for s in sizes]
    padded = F.pad(rows, (0, 0, 0, max(sizes) - rows.size(0))).contiguous()
    pieces = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(pieces, padded)
    return torch.cat([piece[:n] for piece, n in zip(pieces, sizes)])


def reduce_sums(sums):
    names = sorted(sums)
    values = torch.stack([sums[n].double() for n in names])
    dist.all_reduce(values)
    return dict(zip(names, values.tolist()))
