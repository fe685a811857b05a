import torch
import torch.distributed as dist


class OverlappedGradients:
    """Starts the reduction of a bucket as soon as its last gradient is complete."""

    def __init__(self, params, bucket_bytes):
        self.world = dist.get_world_size()
        self.enabled = True
        self.buckets, self.waiting, self.jobs = [], [], []
        current, size = [], 0
        for p in reversed(list(params)):
            current.append(p)
            size += p.numel() * p.element_size()
            if size >= bucket_bytes:
                self._add(current)
                current, size = [], 0
        if current:
            self._add(current)

    def _add(self, params):
        number = len(self.buckets)
        self.buckets.append(params)
        self.waiting.append(len(params))
        for p in params:
            p.register_post_accumulate_grad_hook(lambda _, n=number: self._ready(n))

    def _ready(self, number):
        if not self.enabled:
            return
        self.waiting[number] -= 1
        if self.waiting[number] == 0:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[number]])
            self.jobs.append((number, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for number, flat, work in self.jobs:
            work.wait()
            flat.div_(self.world)
            offset = 0
            for p in self.buckets[number]:
                p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
                offset += p.numel()
        self.jobs.clear()
        self.waiting = [len(b) for b in self.buckets]


def ring_negatives(features, hops):
    """Collects the features of the next ``hops`` ranks around the ring."""
    rank, world = dist.get_rank(), dist.get_world_size()
    to, source = (rank - 1) % world, (rank + 1) % world
    held, out = features.detach().contiguous(), []
    for _ in range(min(hops, world - 1)):
        incoming = torch.empty_like(held)
        ops = [dist.P2POp(dist.isend, held, to), dist.P2POp(dist.irecv, incoming, source)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        out.append(incoming)
        held = incoming
    return out
