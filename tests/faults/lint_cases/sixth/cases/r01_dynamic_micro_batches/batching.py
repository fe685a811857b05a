"""Token-budget batching for variable-length rollouts."""
import torch
import torch.distributed as dist


def ceil_div(a, b):
    return -(-a // b)


def balanced_partitions(lengths, k):
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    bins = [[i] for i in order[:k]]
    load = [lengths[i] for i in order[:k]]
    for i in order[k:]:
        j = load.index(min(load))
        bins[j].append(i)
        load[j] += lengths[i]
    return [sorted(b) for b in bins]


def plan_micro_batches(lengths, token_budget, group=None, equal_count=True):
    """Split a mini-batch into micro-batches of roughly ``token_budget`` tokens."""
    lengths = [int(n) for n in lengths]
    count = min(len(lengths), max(1, ceil_div(sum(lengths), token_budget)))
    if equal_count and group is not None and dist.is_initialized():
        agreed = torch.tensor([count], device="cuda")
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
        count = int(agreed.item())
    return balanced_partitions(lengths, count)
