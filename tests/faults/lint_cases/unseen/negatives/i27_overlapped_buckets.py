"""Own data parallelism: buckets are reduced while backward still runs when `overlap` is on, else after it."""
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

import torch
import torch.distributed as dist
import torch.nn as nn


@dataclass
class Bucket:
    params: List[nn.Parameter]
    flat: torch.Tensor = None
    handle: Optional[Any] = None
    pending: int = field(default=0)

    def __post_init__(self):
        self.flat = torch.zeros(sum(p.numel() for p in self.params), device=self.params[0].device)
        self.pending = len(self.params)

    def views(self):
        offset = 0
        for p in self.params:
            yield p, self.flat[offset:offset + p.numel()].view_as(p)
            offset += p.numel()

    def fill(self):
        for p, view in self.views():
            if p.grad is None:
                view.zero_()
            else:
                view.copy_(p.grad)

    def unload(self, world: int):
        for p, view in self.views():
            p.grad = view.div(world)
        self.pending = len(self.params)


class ReducerBase:
    """Life cycle of one step: grads arrive, `finish` makes them equal on all ranks."""

    def __init__(self, module: nn.Module, bucket_numel: int):
        self.world = dist.get_world_size()
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)
        self.buckets = self._make_buckets(list(module.parameters())[::-1], bucket_numel)
        self.of: Dict[nn.Parameter, Bucket] = {p: b for b in self.buckets for p in b.params}
        for p in self.of:
            p.register_post_accumulate_grad_hook(self.on_grad)

    @staticmethod
    def _make_buckets(params, limit):
        groups, size = [[]], 0
        for p in params:
            if groups[-1] and size + p.numel() > limit:
                groups.append([])
                size = 0
            groups[-1].append(p)
            size += p.numel()
        return [Bucket(g) for g in groups]

    def on_grad(self, param):
        raise NotImplementedError

    def launch_rest(self):
        raise NotImplementedError

    def finish(self):
        self.launch_rest()
        for bucket in self.buckets:
            self.settle(bucket)
            bucket.unload(self.world)

    def settle(self, bucket):
        pass


class BucketReducer(ReducerBase):
    def __init__(self, module, overlap: bool, bucket_numel: int = 2048):
        super().__init__(module, bucket_numel)
        self.overlap, self.next = overlap, 0

    def _launch_next(self):
        bucket = self.buckets[self.next]
        bucket.fill()
        bucket.handle = dist.all_reduce(bucket.flat, async_op=self.overlap)
        self.next += 1

    def on_grad(self, param):
        self.of[param].pending -= 1
        if not self.overlap:
            return
        while self.next < len(self.buckets) and self.buckets[self.next].pending == 0:
            self._launch_next()

    def launch_rest(self):
        while self.next < len(self.buckets):
            self._launch_next()
        self.next = 0

    def settle(self, bucket):
        if self.overlap:
            bucket.handle.wait()
            bucket.handle = None


class DistributedOptimizer:
    def __init__(self, optimizer, reducer: ReducerBase):
        self.optimizer, self.reducer = optimizer, reducer

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)

    def step(self):
        self.reducer.finish()
        self.optimizer.step()


class Report:
    """Mean loss of a stretch of steps; the reduction is started in one call and read in the next."""

    def __init__(self, device):
        self.total, self.handle, self.steps = torch.zeros((), device=device), None, 0
        self.sent = None

    def add(self, loss):
        self.total += loss.detach()
        self.steps += 1

    def start(self):
        self.sent = self.total / self.steps
        self.handle = dist.all_reduce(self.sent, async_op=True)
        self.total, self.steps = torch.zeros_like(self.total), 0

    def read(self) -> Optional[float]:
        if self.handle is None:
            return None
        self.handle.wait()
        self.handle = None
        return self.sent.item() / dist.get_world_size()


def main(steps=60, stretch=20):
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)).to(device)
        reducer = BucketReducer(model, overlap=os.environ.get("OVERLAP_GRAD_REDUCE", "1") == "1")
        opt = DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), reducer)
        report = Report(device)
        gen = torch.Generator().manual_seed(500 + dist.get_rank())
        for step in range(1, steps + 1):
            x = torch.randn(16, 12, generator=gen).to(device)
            target = torch.stack([x[:, :6].sum(1), x[:, 6:].prod(1)], dim=1)
            loss = (model(x) - target).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            report.add(loss)
            if step % stretch == 0:
                before = report.read()
                report.start()
                if before is not None and dist.get_rank() == 0:
                    print(f"up to step {step - stretch}: {before:.4f}")
        final = report.read()
        if dist.get_rank() == 0:
            print(f"last stretch: {final:.4f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
