"""DeepFM-like click model with a home-made trainer that survives bad batches."""
import logging
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("ctr")


class NonFiniteLoss(RuntimeError):
    pass


class ClickLog(Dataset):
    """Categorical slots plus dense counters; a handful of rows carry broken counters."""

    def __init__(self, n=1024, slots=6, dense=4, seed=11):
        g = torch.Generator().manual_seed(seed)
        self.cat = torch.randint(0, 200, (n, slots), generator=g)
        self.dense = torch.rand(n, dense, generator=g) * 50
        self.dense[torch.randint(0, n, (5,), generator=g), 0] = float("nan")
        self.click = (torch.rand(n, generator=g) < 0.2).float()

    def __len__(self):
        return len(self.click)

    def __getitem__(self, i):
        return self.cat[i], self.dense[i], self.click[i]


class DeepFM(nn.Module):
    def __init__(self, vocab=200, slots=6, dense=4, dim=8):
        super().__init__()
        self.emb = nn.Embedding(vocab * slots, dim)
        self.register_buffer("offsets", torch.arange(slots) * vocab, persistent=False)
        self.deep = nn.Sequential(nn.Linear(slots * dim + dense, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, cat, dense):
        e = self.emb(cat + self.offsets)
        fm = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(-1)
        deep = self.deep(torch.cat([e.flatten(1), torch.log1p(dense)], dim=1)).squeeze(-1)
        return fm + deep


class Stopwatch:
    def __init__(self):
        self.seconds = {}

    @contextmanager
    def section(self, name):
        import time
        t = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - t


class ClickModule:
    def __init__(self, net):
        self.net = net

    def check(self, loss):
        if not torch.isfinite(loss):  # RELATED: guard
            raise NonFiniteLoss(f"loss={loss.item()}")  # EXPECT: raise-before-collective
        return loss

    def training_step(self, batch):
        cat, dense, click = batch
        loss = F.binary_cross_entropy_with_logits(self.net(cat, dense), click)  # RELATED: source
        return self.check(loss)


class Trainer:
    def __init__(self, module, optimizer, max_epochs=2, max_skips=50):
        self.module, self.optimizer = module, optimizer
        self.max_epochs, self.max_skips, self.skips = max_epochs, max_skips, 0
        self.watch = Stopwatch()

    def optimize(self, batch):
        with self.watch.section("forward"):
            loss = self.module.training_step(batch)
        with self.watch.section("backward"):
            self.optimizer.zero_grad()
            loss.backward()  # RELATED: hidden-collective
        self.optimizer.step()
        return loss.detach()

    def fit(self, loader):
        for epoch in range(self.max_epochs):
            loader.sampler.set_epoch(epoch)
            for i, batch in enumerate(loader):
                try:
                    self.optimize(batch)
                except NonFiniteLoss as err:
                    self.skips += 1
                    log.warning("epoch %d batch %d skipped: %s", epoch, i, err)
                    if self.skips > self.max_skips:
                        raise
            dist.barrier()
        return self.skips


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = ClickLog()
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=5), drop_last=True)
    net = DDP(DeepFM(), broadcast_buffers=False)
    trainer = Trainer(ClickModule(net), torch.optim.Adagrad(net.parameters(), lr=0.02))
    skips = trainer.fit(loader)
    log.info("rank %d done, %d batches skipped, %s", dist.get_rank(), skips, trainer.watch.seconds)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
