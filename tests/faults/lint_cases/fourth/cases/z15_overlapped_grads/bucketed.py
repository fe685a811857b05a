import torch
import torch.distributed as dist


class Bucket:
    def __init__(self, params):
        self.params = params
        self.buffer = None

    def pack(self):
        self.buffer = torch.cat([p.grad.flatten() for p in self.params])

    def unpack(self, scale):
        self.buffer.mul_(scale)
        offset = 0
        for p in self.params:
            p.grad.copy_(self.buffer[offset : offset + p.numel()].view_as(p))
            offset += p.numel()


class BucketedAverager:
    """Averages gradients in buckets of about `megabytes`, all of them in flight at once."""

    def __init__(self, model, megabytes=25):
        limit = megabytes * 2**20
        self.buckets, current, size = [], [], 0
        for p in reversed([p for p in model.parameters() if p.requires_grad]):
            current.append(p)
            size += p.numel() * p.element_size()
            if size >= limit:
                self.buckets.append(Bucket(current))
                current, size = [], 0
        if current:
            self.buckets.append(Bucket(current))

    @torch.no_grad()
    def start(self):
        for bucket in self.buckets:
            bucket.pack()
            dist.all_reduce(bucket.buffer, async_op=True)

    @torch.no_grad()
    def finish(self):
        scale = 1.0 / dist.get_world_size()
        for bucket in self.buckets:
            bucket.unpack(scale)
