import torch
import torch.distributed as dist


class _ShareContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, src, group):
        ctx.src = src
        ctx.group = group
        ctx.rank = dist.get_rank(group)
        out = tensor.detach().clone()
        dist.broadcast(out, src=src, group=group)
        return out

    @staticmethod
    def backward(ctx, grad_output):
        grad = grad_output.contiguous().clone()
        dist.reduce(grad, dst=ctx.src, group=ctx.group)
        if ctx.rank != ctx.src:
            grad.zero_()
        return grad, None, None


def share_context(tensor, src, group):
    return _ShareContext.apply(tensor, src, group)


class ReplicaLayout:
    """Contiguous replicas of ``size`` ranks; the first rank of a replica leads it."""

    def __init__(self, size):
        world = dist.get_world_size()
        if world % size:
            raise ValueError("world size must be a multiple of the replica size")
        rank = dist.get_rank()
        for start in range(0, world, size):
            members = list(range(start, start + size))
            group = dist.new_group(members)
            if rank in members:
                self.group = group
                self.leader = start
        self.leaders = list(range(0, world, size))
        self.leader_group = dist.new_group(self.leaders)
        self.is_leader = rank == self.leader


def average_gradients(params, group, count):
    for p in params:
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad.div_(count)
