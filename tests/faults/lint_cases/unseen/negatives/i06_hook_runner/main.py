import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evaluator import Accuracy, Evaluator
from hooks import build_hook

CFG = dict(
    max_epochs=4,
    batch_size=16,
    val_interval=1,
    hooks=[
        dict(type="SamplerSeedHook"),
        dict(type="LoggerHook", interval=10),
        dict(type="CheckpointHook", out_dir=os.environ.get("WORK_DIR", "work_dir")),
    ],
)


def make_set(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 12, generator=g)
    return TensorDataset(x, x[:, :3].argmax(1))


class Runner:
    def __init__(self, cfg, device):
        self.cfg, self.device = cfg, device
        self.module = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 3)).to(device)
        self.model = DistributedDataParallel(self.module, device_ids=[device.index] if device.type == "cuda" else None)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        train, self.val_set = make_set(640, 0), make_set(101, 1)
        self.train_loader = DataLoader(train, batch_size=cfg["batch_size"], sampler=DistributedSampler(train), drop_last=True)
        self.val_loader = DataLoader(self.val_set, batch_size=8, sampler=DistributedSampler(self.val_set, shuffle=False))
        self.evaluator = Evaluator(Accuracy())
        self.hooks = sorted((build_hook(c) for c in cfg["hooks"]), key=lambda h: h.priority)
        self.epoch, self.iter, self.stop, self.outputs = 0, 0, False, {}

    def call_hook(self, name, *args):
        for hook in self.hooks:
            getattr(hook, name)(self, *args)

    def train_epoch(self):
        self.model.train()
        self.call_hook("before_train_epoch")
        for x, y in self.train_loader:
            loss = nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
            self.outputs = {"loss": loss.detach()}
            self.iter += 1
            self.call_hook("after_train_iter")
        self.call_hook("after_train_epoch")

    @torch.no_grad()
    def val_epoch(self):
        self.model.eval()
        for x, y in self.val_loader:
            self.evaluator.process(self.module(x.to(self.device)).argmax(1).cpu(), y)
        self.call_hook("after_val_epoch", self.evaluator.evaluate(len(self.val_set)))

    def train(self):
        self.call_hook("before_run")
        while self.epoch < self.cfg["max_epochs"] and not self.stop:
            self.train_epoch()
            if (self.epoch + 1) % self.cfg["val_interval"] == 0:
                self.val_epoch()
            self.epoch += 1


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        Runner(CFG, torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")).train()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
