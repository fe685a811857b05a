"""Two kinds of torchmetrics: running ones that rank 0 reads alone, and epoch ones that all ranks compute together."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

CLASSES = 5


class MetricBook:
    def __init__(self, device):
        self.running = {
            name: MeanMetric(nan_strategy="disable", sync_on_compute=False).to(device) for name in ("loss", "grad_norm")
        }
        self.epoch = MetricCollection({
            "acc": MulticlassAccuracy(CLASSES, average="micro"),
            "f1": MulticlassF1Score(CLASSES),
        }, compute_groups=False).to(device)

    def track(self, **values):
        for name, value in values.items():
            self.running[name].update(value)

    def flush(self):
        out = {name: metric.compute().item() for name, metric in self.running.items()}
        self.restart()
        return out

    def restart(self):
        for metric in self.running.values():
            metric.reset()

    def close_epoch(self):
        out = {k: v.item() for k, v in self.epoch.compute().items()}
        self.epoch.reset()
        return out


class LoggingMixin:
    log_every = 10

    def maybe_log(self, step):
        if step % self.log_every:
            return
        if self.rank == 0:
            print(f"step {step} " + " ".join(f"{k} {v:.4f}" for k, v in self.book.flush().items()))
        else:
            self.book.restart()


class Trainer(LoggingMixin):
    def __init__(self, device):
        self.device, self.rank = device, dist.get_rank()
        g = torch.Generator().manual_seed(8)
        centers = torch.randn(CLASSES, 12, generator=g) * 2
        y = torch.randint(0, CLASSES, (600,), generator=g)
        x = centers[y] + torch.randn(600, 12, generator=g)
        self.train_set, self.val_set = TensorDataset(x[:480], y[:480]), TensorDataset(x[480:], y[480:])
        self.sampler = DistributedSampler(self.train_set)
        self.train_loader = DataLoader(self.train_set, batch_size=16, sampler=self.sampler)
        self.val_loader = DataLoader(self.val_set, batch_size=16, sampler=DistributedSampler(self.val_set, shuffle=False))
        self.module = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, CLASSES)).to(device)
        self.model = DistributedDataParallel(self.module, device_ids=[device.index] if device.type == "cuda" else None)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(self.opt, mode="max", patience=1)
        self.book, self.step, self.best = MetricBook(device), 0, 0.0

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for x, y in self.train_loader:
            loss = nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.opt.step()
            self.step += 1
            self.book.track(loss=loss.detach(), grad_norm=norm)
            self.maybe_log(self.step)

    @torch.no_grad()
    def validate(self):
        self.module.eval()
        for x, y in self.val_loader:
            self.book.epoch.update(self.module(x.to(self.device)), y.to(self.device))
        self.module.train()
        return self.book.close_epoch()

    def save_if_better(self, metrics):
        if metrics["f1"] <= self.best:
            return False
        self.best = metrics["f1"]
        if self.rank == 0:
            torch.save(self.module.state_dict(), "best_f1.pt.tmp")
            os.replace("best_f1.pt.tmp", "best_f1.pt")
        return True

    def fit(self, epochs):
        for epoch in range(epochs):
            self.train_epoch(epoch)
            metrics = self.validate()
            self.schedule.step(metrics["acc"])
            better = self.save_if_better(metrics)
            if self.rank == 0:
                print(f"epoch {epoch} acc {metrics['acc']:.3f} f1 {metrics['f1']:.3f}{' *' if better else ''}")


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        Trainer(device).fit(3)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
