"""Masked-autoencoder pretraining with FSDP2 and a small callback trainer."""
import os
import tempfile
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


@dataclass
class PretrainConfig:
    dim: int = 32
    depth: int = 2
    patches: int = 16
    mask_ratio: float = 0.75
    epochs: int = 2
    steps_per_epoch: int = 4
    save_every: int = 1
    out_dir: str = field(default_factory=lambda: os.path.join(tempfile.gettempdir(), "mae_tiny"))


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.mix(self.norm1(x)).mean(1, keepdim=True)
        return x + self.mlp(self.norm2(x))


class MAE(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(48, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg.dim) for _ in range(cfg.depth))
        self.decode = nn.Linear(cfg.dim, 48)

    def forward(self, patches, mask):
        x = self.embed(patches * (~mask).unsqueeze(-1))
        for blk in self.blocks:
            x = blk(x)
        err = (self.decode(x) - patches).pow(2).mean(-1)
        return (err * mask).sum() / mask.sum().clamp(min=1)


class ShardedStrategy:
    """Everything that knows how parameters are laid out."""

    def __init__(self, world_size):
        self.mesh = init_device_mesh("cpu", (world_size,))

    def wrap(self, model):
        for blk in model.blocks:
            fully_shard(blk, mesh=self.mesh)
        return fully_shard(model, mesh=self.mesh)

    @staticmethod
    def _materialize(t):
        return t.full_tensor() if isinstance(t, DTensor) else t  # RELATED: hidden-collective

    def export(self, model):
        return {name: self._materialize(p.detach()) for name, p in model.named_parameters()}


class Callback:
    def on_epoch_end(self, trainer):
        pass


class PeriodicCheckpoint(Callback):
    def __init__(self, out_dir, every):
        self.out_dir, self.every = out_dir, every

    def on_epoch_end(self, trainer):
        if (trainer.epoch + 1) % self.every:
            return
        if trainer.is_main:  # RELATED: guard
            self.dump(trainer)  # EXPECT: rank-guarded-sharded-io

    def dump(self, trainer):
        state = {"model": trainer.strategy.export(trainer.model), "epoch": trainer.epoch}
        os.makedirs(self.out_dir, exist_ok=True)
        path = os.path.join(self.out_dir, f"epoch{trainer.epoch:03d}.pt")
        torch.save(state, path + ".tmp")
        os.replace(path + ".tmp", path)


class Trainer:
    def __init__(self, cfg, callbacks):
        self.cfg, self.callbacks, self.epoch = cfg, callbacks, 0
        self.strategy = ShardedStrategy(dist.get_world_size())
        self.model = self.strategy.wrap(MAE(cfg))
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.gen = torch.Generator().manual_seed(100 + dist.get_rank())

    @property
    def is_main(self):
        return dist.get_rank() == 0

    def batches(self):
        for _ in range(self.cfg.steps_per_epoch):
            patches = torch.randn(8, self.cfg.patches, 48, generator=self.gen)
            yield patches, torch.rand(8, self.cfg.patches, generator=self.gen) < self.cfg.mask_ratio

    def fit(self):
        for self.epoch in range(self.cfg.epochs):
            for patches, mask in self.batches():
                loss = self.model(patches, mask)
                loss.backward()
                self.optim.step()
                self.optim.zero_grad()
            for cb in self.callbacks:
                cb.on_epoch_end(self)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    cfg = PretrainConfig()
    Trainer(cfg, [PeriodicCheckpoint(cfg.out_dir, cfg.save_every)]).fit()
    dist.barrier()
    dist.destroy_process_group()
