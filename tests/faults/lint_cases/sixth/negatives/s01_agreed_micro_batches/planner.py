import torch
import torch.distributed as dist


def local_count(lengths, budget):
    return min(len(lengths), max(1, -(-sum(lengths) // budget)))


def agree_on_max(value, device, group=None):
    box = torch.tensor([value], device=device)
    dist.all_reduce(box, op=dist.ReduceOp.MAX, group=group)
    return int(box.item())


def split(lengths, count):
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    bins = [[] for _ in range(count)]
    load = [0] * count
    for n, i in enumerate(order):
        j = n if n < count else load.index(min(load))
        bins[j].append(i)
        load[j] += lengths[i]
    return bins


def plan(lengths, budget, device):
    count = local_count(lengths, budget)
    if dist.is_initialized():
        count = agree_on_max(count, device)
    return split(lengths, count)
