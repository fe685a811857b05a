"""Runner with hooks and an optimizer whose state is partitioned over the processes (ZeRO stage 1)."""
import os
import os.path as osp
import time
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


class Registry(dict):
    def register_module(self, cls):
        self[cls.__name__] = cls
        return cls

    def build(self, cfg):
        cfg = dict(cfg)
        return self[cfg.pop("type")](**cfg)


HOOKS = Registry()
OPTIM_WRAPPERS = Registry()


class Hook:
    priority = 50

    def before_run(self, runner):
        pass

    def after_train_iter(self, runner, loss):
        pass

    def after_train_epoch(self, runner):
        pass


@HOOKS.register_module
class IterTimerHook(Hook):
    def __init__(self):
        self.tic = time.time()

    def after_train_iter(self, runner, loss):
        runner.buffer["time"] = time.time() - self.tic
        self.tic = time.time()


@HOOKS.register_module
class SyncLossHook(Hook):
    """Replaces the loss in the buffer by its mean over processes."""

    priority = 40

    def after_train_iter(self, runner, loss):
        t = loss.detach().clone()
        dist.all_reduce(t)
        runner.buffer["loss"] = t.item() / runner.world_size


@HOOKS.register_module
class TextLoggerHook(Hook):
    priority = 90

    def __init__(self, interval=2):
        self.interval = interval

    def after_train_iter(self, runner, loss):
        if runner.iter % self.interval == 0:
            print(f"epoch {runner.epoch} iter {runner.iter} " + " ".join(f"{k}: {v:.4f}" for k, v in runner.buffer.items()))


@HOOKS.register_module
class CheckpointHook(Hook):
    priority = 80

    def __init__(self, interval=1, save_optimizer=True, max_keep=2):
        self.interval, self.save_optimizer, self.max_keep = interval, save_optimizer, max_keep
        self.written = []

    def before_run(self, runner):
        os.makedirs(runner.work_dir, exist_ok=True)

    def after_train_epoch(self, runner):
        if (runner.epoch + 1) % self.interval:
            return
        ckpt = {"meta": {"epoch": runner.epoch + 1, "iter": runner.iter}, "state_dict": runner.weights()}
        if self.save_optimizer:
            ckpt["optimizer"] = runner.optim_wrapper.full_state()  # EXPECT: rank-guarded-sharded-io
        self.write(runner, ckpt)

    def write(self, runner, ckpt):
        path = osp.join(runner.work_dir, f"epoch_{ckpt['meta']['epoch']}.pth")
        torch.save(ckpt, path)
        self.written.append(path)
        while len(self.written) > self.max_keep:
            os.remove(self.written.pop(0))


class OptimWrapper:
    def __init__(self, params, optimizer):
        self.inner = optimizer["cls"](params, **optimizer["args"])

    def update(self, loss):
        self.inner.zero_grad()
        loss.backward()
        self.inner.step()

    def full_state(self):
        return self.inner.state_dict()


@OPTIM_WRAPPERS.register_module
class PlainOptimWrapper(OptimWrapper):
    pass


@OPTIM_WRAPPERS.register_module
class ZeroOptimWrapper(OptimWrapper):
    """Each process keeps the state of its part of the parameters."""

    def __init__(self, params, optimizer):
        self.inner = ZeroRedundancyOptimizer(params, optimizer_class=optimizer["cls"], **optimizer["args"])

    def full_state(self):
        """State of all partitions, on the first process; None elsewhere."""
        self.inner.consolidate_state_dict(to=0)  # RELATED: hidden-collective
        return self.inner.state_dict() if dist.get_rank() == 0 else None


class Runner:
    default_hooks = OrderedDict(timer=dict(type="IterTimerHook"), sync=dict(type="SyncLossHook"))

    def __init__(self, model, loader, cfg):
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.model, self.loader, self.work_dir = DistributedDataParallel(model), loader, cfg["work_dir"]
        self.optim_wrapper = OPTIM_WRAPPERS[cfg["optim_wrapper"]["type"]](model.parameters(), cfg["optim_wrapper"]["optimizer"])
        self.max_epochs, self.epoch, self.iter, self.buffer = cfg["max_epochs"], 0, 0, {}
        self.hooks = []
        for hook in self.default_hooks.values():
            self.register_hook(hook)
        self.register_training_hooks(cfg)

    @property
    def is_master(self):
        return self.rank == 0

    def register_hook(self, cfg):
        self.hooks.append(HOOKS.build(cfg))
        self.hooks.sort(key=lambda h: h.priority)

    def register_training_hooks(self, cfg):
        if self.is_master:  # RELATED: guard
            self.register_hook(cfg["checkpoint"])
            self.register_hook(cfg["logger"])

    def call_hook(self, name, *args):
        for hook in self.hooks:
            getattr(hook, name)(self, *args)

    def weights(self):
        return OrderedDict((k, v.detach().clone()) for k, v in self.model.module.state_dict().items())

    def run(self):
        self.call_hook("before_run")
        for self.epoch in range(self.max_epochs):
            for x, y in self.loader:
                loss = nn.functional.mse_loss(self.model(x), y)
                self.optim_wrapper.update(loss)
                self.iter += 1
                self.call_hook("after_train_iter", loss)
            self.call_hook("after_train_epoch")
        dist.barrier()


CONFIG = dict(
    max_epochs=2,
    work_dir=osp.join(os.environ.get("CASE_TMP", "."), "work_dir"),
    optim_wrapper=dict(type="ZeroOptimWrapper", optimizer=dict(cls=torch.optim.AdamW, args=dict(lr=1e-2))),
    checkpoint=dict(type="CheckpointHook", interval=1),
    logger=dict(type="TextLoggerHook", interval=2),
)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 1))
    g = torch.Generator().manual_seed(dist.get_rank())
    loader = [(torch.randn(4, 5, generator=g), torch.randn(4, 1, generator=g)) for _ in range(3)]
    Runner(net, loader, CONFIG).run()


if __name__ == "__main__":
    main()
