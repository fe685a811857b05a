import torch
import torch.distributed as dist


class Engine:
    """Keeps a full replica per rank and averages the gradients in flat buckets."""

    def __init__(self, model, args):
        self.model = model
        self.args = args
        self.world_size = dist.get_world_size()
        self.params = [p for p in model.parameters() if p.requires_grad]
        decay = [p for p in self.params if p.dim() > 1]
        others = [p for p in self.params if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decay, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=args.lr)
        self.buckets = self._make_buckets(args.bucket_mb * 2 ** 20)

    def _make_buckets(self, limit):
        buckets, current, size = [], [], 0
        for p in reversed(self.params):
            current.append(p)
            size += p.numel() * p.element_size()
            if size >= limit:
                buckets.append(current)
                current, size = [], 0
        if current:
            buckets.append(current)
        return buckets

    def backward(self, loss):
        loss.backward()
        for bucket in self.buckets:
            flat = torch.cat([p.grad.flatten() for p in bucket])
            dist.all_reduce(flat)
            flat.div_(self.world_size)
            offset = 0
            for p in bucket:
                p.grad.copy_(flat[offset:offset + p.numel()].view_as(p))
                offset += p.numel()

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.params, self.args.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def save(self, path):
        if dist.get_rank() == 0:
            torch.save({"model": self.model.state_dict(), "args": vars(self.args)}, path)
        dist.barrier()
