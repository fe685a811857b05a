"""One evaluation routine for two uses: quick looks by rank 0 alone and full passes by all ranks, told apart by an argument."""
import os
from typing import Dict, Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class MeanMeter:
    def __init__(self, device):
        self.state = torch.zeros(2, device=device)

    def update(self, value, n):
        self.state[0] += value * n
        self.state[1] += n

    def compute(self, sync: bool) -> float:
        state = self.state.clone()
        if sync:
            dist.all_reduce(state)
        return (state[0] / state[1].clamp(min=1)).item()


def write_state(state: Dict, path: str, wait: bool = False) -> None:
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)
    if wait:
        dist.barrier()


class BaseTrainer:
    """Owns the loop; subclasses say what a step and an evaluation are."""

    def __init__(self, model, train_set, device, batch_size=16):
        self.device, self.raw = device, model.to(device)
        self.model = DDP(self.raw, device_ids=[device.index] if device.type == "cuda" else None)
        self.sampler = DistributedSampler(train_set)
        self.loader = DataLoader(train_set, batch_size=batch_size, sampler=self.sampler)
        self.step = 0

    @property
    def is_main(self):
        return dist.get_rank() == 0

    def begin_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        self.model.train()

    def fit(self, epochs):
        for epoch in range(epochs):
            self.begin_epoch(epoch)
            for batch in self.loader:
                self.train_step(*(t.to(self.device) for t in batch))
                self.step += 1
                self.after_step()
            self.after_epoch(epoch)

    def train_step(self, x, y):
        raise NotImplementedError

    def after_step(self):
        pass

    def after_epoch(self, epoch):
        pass


class Classify(BaseTrainer):
    def __init__(self, model, train_set, val_set, device, peek_every=10, out="classifier.pt"):
        super().__init__(model, train_set, device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.peek_every, self.out, self.best = peek_every, out, 0.0
        self.val_loader = DataLoader(val_set, batch_size=16, sampler=DistributedSampler(val_set, shuffle=False))
        self.peek_loader = DataLoader(Subset(val_set, range(16)), batch_size=16)

    def train_step(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()

    @torch.no_grad()
    def evaluate(self, module, loader, distributed: bool) -> float:
        was = module.training
        module.eval()
        meter = MeanMeter(self.device)
        for x, y in loader:
            hits = (module(x.to(self.device)).argmax(1) == y.to(self.device)).float().mean()
            meter.update(hits, len(x))
        module.train(was)
        return self._finish(meter, distributed)

    def _finish(self, meter: MeanMeter, distributed: bool) -> float:
        return meter.compute(sync=distributed)

    def after_step(self):
        if self.step % self.peek_every == 0 and self.is_main:
            acc = self.evaluate(self.raw, self.peek_loader, distributed=False)
            print(f"step {self.step} peek {acc:.3f}")

    def after_epoch(self, epoch):
        acc = self.evaluate(self.raw, self.val_loader, distributed=True)
        if acc <= self.best:
            return
        self.best = acc
        self.checkpoint(epoch)

    def checkpoint(self, epoch: int, path: Optional[str] = None):
        if self.is_main:
            write_state({"epoch": epoch, "acc": self.best, "model": self.raw.state_dict()}, path or self.out)
            print(f"epoch {epoch} acc {self.best:.3f} saved")

    def export_per_rank(self, root="per_rank"):
        os.makedirs(root, exist_ok=True)
        write_state({"rank": dist.get_rank(), "step": self.step}, os.path.join(root, f"{dist.get_rank()}.pt"), wait=True)


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        g = torch.Generator().manual_seed(4)
        x = torch.randn(480, 8, generator=g)
        y = x[:, :4].argmax(1)
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        trainer = Classify(net, TensorDataset(x[:384], y[:384]), TensorDataset(x[384:], y[384:]), device)
        trainer.fit(epochs=3)
        trainer.export_per_rank()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
