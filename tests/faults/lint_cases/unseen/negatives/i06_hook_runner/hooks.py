"""Hooks of the runner and their registry."""
import functools
import os

import torch
import torch.distributed as dist

HOOKS = {}


def register(cls):
    HOOKS[cls.__name__] = cls
    return cls


def build_hook(cfg):
    cfg = dict(cfg)
    return HOOKS[cfg.pop("type")](**cfg)


def master_only(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        if dist.get_rank() == 0:
            return fn(*args, **kwargs)

    return wrapper


class Hook:
    priority = 50

    def before_run(self, runner):
        pass

    def before_train_epoch(self, runner):
        pass

    def after_train_iter(self, runner):
        pass

    def after_train_epoch(self, runner):
        pass

    def after_val_epoch(self, runner, metrics):
        pass

    @staticmethod
    def every(n, count):
        return n > 0 and count % n == 0


@register
class SamplerSeedHook(Hook):
    priority = 10

    def before_train_epoch(self, runner):
        loader = runner.train_loader
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(runner.epoch)
                break


@register
class LoggerHook(Hook):
    priority = 90

    def __init__(self, interval=10):
        self.interval = interval

    def after_train_iter(self, runner):
        if self.every(self.interval, runner.iter):
            self._emit(f"epoch {runner.epoch} iter {runner.iter} loss {runner.outputs['loss'].item():.4f}")

    def after_val_epoch(self, runner, metrics):
        self._emit(f"epoch {runner.epoch} " + " ".join(f"{k} {v:.4f}" for k, v in sorted(metrics.items())))

    @master_only
    def _emit(self, line):
        print(line)


@register
class CheckpointHook(Hook):
    priority = 80

    def __init__(self, out_dir="work_dir", save_best="acc", patience=3):
        self.out_dir, self.key, self.patience = out_dir, save_best, patience
        self.best, self.since = float("-inf"), 0

    @master_only
    def before_run(self, runner):
        os.makedirs(self.out_dir, exist_ok=True)

    def after_val_epoch(self, runner, metrics):
        if metrics[self.key] <= self.best:
            self.since += 1
            runner.stop = self.since >= self.patience
            return
        self.best, self.since = metrics[self.key], 0
        self._write({"epoch": runner.epoch, "state_dict": runner.module.state_dict()}, f"best_{self.key}.pth")

    @master_only
    def _write(self, obj, name):
        path = os.path.join(self.out_dir, name)
        torch.save(obj, path + ".part")
        os.replace(path + ".part", path)
