"""Single-stage detector on synthetic shapes, trained with a hook-based loop."""
import argparse
import functools

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class comm:
    @staticmethod
    def get_rank():
        return dist.get_rank() if dist.is_initialized() else 0

    @staticmethod
    def is_main_process():
        return comm.get_rank() == 0


class ShapesDataset(Dataset):
    def __init__(self, n, size=32, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.images = torch.rand(n, 3, size, size, generator=g)
        self.heat = (torch.rand(n, 1, size // 4, size // 4, generator=g) > 0.9).float()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i], self.heat[i]


def conv_bn(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class CenterDetector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.backbone = nn.Sequential(conv_bn(3, width, 2), conv_bn(width, width * 2, 2))
        self.head = nn.Conv2d(width * 2, 1, 1)

    def forward(self, images):
        return self.head(self.backbone(images))


def inference_on_dataset(model, loader, threshold=0.5):
    was_training = model.training
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for images, heat in loader:
            pred = model(images).sigmoid() > threshold  # RELATED: hidden-collective
            hits += (pred == heat.bool()).sum().item()
            total += heat.numel()
    model.train(was_training)
    return {"cell_acc": hits / max(total, 1)}


class HookBase:
    trainer = None

    def after_step(self):
        pass


class EvalHook(HookBase):
    def __init__(self, period, eval_function):
        self._period = period
        self._func = eval_function

    def _do_eval(self):
        if comm.is_main_process():  # RELATED: guard
            results = self._func()  # EXPECT: rank-guarded-wrapped-forward
            print(f"iter {self.trainer.iter}: " + ", ".join(f"{k}={v:.4f}" for k, v in results.items()), flush=True)

    def after_step(self):
        next_iter = self.trainer.iter + 1
        if self._period > 0 and next_iter % self._period == 0:
            self._do_eval()


class SimpleTrainer:
    def __init__(self, model, loader, optimizer):
        self.model, self.loader, self.optimizer = model, loader, optimizer
        self.hooks, self.iter = [], 0

    def register_hooks(self, hooks):
        for h in hooks:
            h.trainer = self
            self.hooks.append(h)

    def run_step(self, images, heat):
        loss = F.binary_cross_entropy_with_logits(self.model(images), heat)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train(self, epochs):
        for epoch in range(epochs):
            self.loader.sampler.set_epoch(epoch)
            for images, heat in self.loader:
                self.run_step(images, heat)
                for h in self.hooks:
                    h.after_step()
                self.iter += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--eval-period", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train_set, val_set = ShapesDataset(128), ShapesDataset(48, seed=1)
    loader = DataLoader(train_set, batch_size=8, sampler=DistributedSampler(train_set, shuffle=True))
    val_loader = DataLoader(val_set, batch_size=16)
    model = DistributedDataParallel(CenterDetector())
    trainer = SimpleTrainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    trainer.register_hooks([EvalHook(args.eval_period, functools.partial(inference_on_dataset, trainer.model, val_loader))])
    trainer.train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
