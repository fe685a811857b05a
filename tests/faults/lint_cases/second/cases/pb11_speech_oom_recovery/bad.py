"""Encoder pretraining on speech of very different lengths, with recovery from memory exhaustion."""
import logging
import os
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

logger = logging.getLogger("train")
DIM = 40


class SpeechEncoder(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inp = nn.Linear(DIM, width)
        self.att = nn.MultiheadAttention(width, 4, batch_first=True)
        self.out = nn.Linear(width, DIM)

    def forward(self, x):
        h = F.gelu(self.inp(x))
        return self.out(h + self.att(h, h, h, need_weights=False)[0])


class UtteranceStream:
    """Endless utterances; now and then one of several minutes."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def __iter__(self):
        while True:
            long = torch.rand((), generator=self.gen) < 0.08
            frames = int(torch.randint(900, 1400, (1,), generator=self.gen)) if long else 120
            yield torch.randn(2, frames, DIM, generator=self.gen)


class MemoryBudget:
    """Refuses a batch whose attention matrix would not fit beside the optimiser states."""

    def __init__(self, cells=1_000_000):
        self.cells = cells

    def check(self, x):
        if x.shape[0] * x.shape[1] ** 2 > self.cells:
            raise torch.OutOfMemoryError(f"CUDA out of memory: attention over {tuple(x.shape)}")


@contextmanager
def profiled(name, times):
    started = time.perf_counter()
    yield
    times[name] = times.get(name, 0.0) + time.perf_counter() - started


class Trainer:
    def __init__(self, model, optimizer, device):
        self.model, self.optimizer, self.device = model, optimizer, device
        self.budget = MemoryBudget()
        self.ooms, self.times = 0, {}

    def _masked_loss(self, x):
        keep = (torch.rand(x.shape[:2], device=x.device) > 0.15)[..., None]
        return F.l1_loss(self.model(x * keep), x)

    def _forward_backward(self, x):
        self.budget.check(x)
        with profiled("step", self.times):
            self._masked_loss(x).backward()

    def _sync_gradients(self):
        flat = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, g in zip(self.model.parameters(), flat.split([p.numel() for p in self.model.parameters()])):
            p.grad.copy_(g.view_as(p))

    def _count_ooms(self):
        seen = torch.ones(1, device=self.device)
        dist.all_reduce(seen)  # RELATED: hidden-collective
        return int(seen)

    def _recover(self, error):
        logger.warning("ran out of memory, skipping batch: %s", error)
        self.optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self.ooms += self._count_ooms()

    def train_step(self, x):
        self.optimizer.zero_grad()
        try:
            self._forward_backward(x.to(self.device))
        except torch.OutOfMemoryError as error:  # RELATED: guard
            self._recover(error)  # EXPECT: collective-in-except
            return False
        self._sync_gradients()
        self.optimizer.step()
        return True


def main():
    logging.basicConfig(level=logging.WARNING)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(0)
    model = SpeechEncoder().to(device)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    torch.manual_seed(200 + rank)
    trainer = Trainer(model, torch.optim.Adam(model.parameters(), lr=1e-3), device)
    for _, x in zip(range(60), UtteranceStream(seed=300 + rank)):
        trainer.train_step(x)
    if rank == 0:
        print(f"done, {trainer.ooms} batches skipped", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
