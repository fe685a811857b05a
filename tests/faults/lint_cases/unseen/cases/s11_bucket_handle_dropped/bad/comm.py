"""Gradient exchange between data-parallel workers."""
import torch
import torch.distributed as dist


class Communicator:
    """Null object outside of a distributed run."""

    world_size = 1
    rank = 0

    def sum_(self, tensor, blocking=True):
        return None

    def broadcast_(self, tensors, root=0):
        pass


class TorchCommunicator(Communicator):
    def __init__(self):
        self.world_size = dist.get_world_size()
        self.rank = dist.get_rank()

    def sum_(self, tensor, blocking=True):
        work = dist.all_reduce(tensor, async_op=not blocking)  # RELATED: hidden-collective
        return work

    def broadcast_(self, tensors, root=0):
        works = [dist.broadcast(t, src=root, async_op=True) for t in tensors]
        for work in works:
            work.wait()


def make_communicator():
    return TorchCommunicator() if dist.is_initialized() else Communicator()


class Bucket:
    """A flat buffer together with the tensors it stands for."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.flat = torch.cat([t.reshape(-1) for t in tensors])

    def scatter(self):
        offset = 0
        for t in self.tensors:
            t.copy_(self.flat[offset:offset + t.numel()].view_as(t))
            offset += t.numel()


def pack(tensors, limit):
    """Yield buckets of at most ``limit`` elements; bigger tensors stay alone."""
    pending, filled = [], 0
    for t in tensors:
        if pending and filled + t.numel() > limit:
            yield Bucket(pending)
            pending, filled = [], 0
        pending.append(t)
        filled += t.numel()
    if pending:
        yield Bucket(pending)


class GradientAverager:
    def __init__(self, comm, bucket_elements=1 << 20):
        self.comm = comm
        self.limit = bucket_elements

    @torch.no_grad()
    def __call__(self, params, denominator):
        grads = [p.grad for p in params if p.requires_grad]
        buckets = []
        for bucket in pack(grads, self.limit):
            self.comm.sum_(bucket.flat, blocking=False)  # EXPECT: missing-wait
            buckets.append(bucket)
        for bucket in buckets:
            bucket.flat.div_(denominator)
            bucket.scatter()
