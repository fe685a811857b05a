import torch
import torch.distributed as dist

from communicator import ExpertCommunicator


def expert_load(counts, group):
    total = counts.clone()
    dist.all_reduce(total, group=group)
    return total


def place_experts(load, ep_size):
    """Greedy placement: the heaviest experts first, each to the lightest rank with a free slot."""
    slots = len(load) // ep_size
    weight = [0.0] * ep_size
    placement = [[] for _ in range(ep_size)]
    for expert in sorted(range(len(load)), key=lambda e: (-load[e], e)):
        free = [r for r in range(ep_size) if len(placement[r]) < slots]
        rank = min(free, key=lambda r: (weight[r], r))
        placement[rank].append(expert)
        weight[rank] += load[expert]
    return placement


def owners(placement):
    return {expert: rank for rank, experts in enumerate(placement) for expert in experts}


@torch.no_grad()
def migrate(weights, old, new, topo):
    """weights: expert id -> list of parameter tensors which this rank holds now."""
    before, after = owners(old), owners(new)
    comm = ExpertCommunicator(topo.ep_group)
    shapes = [t.shape for t in next(iter(weights.values()))]
    moved = {}
    for expert in sorted(before):
        source, target = before[expert], after[expert]
        if source == target:
            continue
        if topo.ep_rank == source:
            comm.send(weights[expert], target)
        elif topo.ep_rank == target:
            moved[expert] = [torch.empty(shape, device="cuda") for shape in shapes]
            comm.receive(moved[expert], source)
    comm.execute()
    kept = {e: w for e, w in weights.items() if after[e] == topo.ep_rank}
    return kept | moved
