"""Distillation of a toy video denoiser: DDP, gradient accumulation, EMA."""
import argparse
import contextlib
import copy
import os
import sys
import time
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class TrainingBatch:
    __slots__ = ("latents", "noise", "timesteps", "total_loss", "grad_norm")

    def __init__(self):
        self.latents = self.noise = self.timesteps = None
        self.total_loss = 0.0
        self.grad_norm = None


class Denoiser(nn.Module):
    def __init__(self, channels=4, width=24):
        super().__init__()
        self.time = nn.Embedding(16, width)
        self.inp = nn.Conv3d(channels, width, 3, padding=1)
        self.out = nn.Conv3d(width, channels, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t)[:, :, None, None, None]
        return self.out(F.silu(h))


class EMAMixin:
    ema = None

    def init_ema(self, module, decay):
        self.ema, self.decay = copy.deepcopy(module).requires_grad_(False), decay

    @torch.no_grad()
    def update_ema(self, module):
        for mine, theirs in zip(self.ema.parameters(), module.parameters()):
            mine.lerp_(theirs, 1.0 - self.decay)


class MetricsMixin:
    def init_metrics(self, every):
        self.every = every
        self.t0 = time.perf_counter()

    def log_metrics(self, step, batch):
        if step % self.every:
            return
        stats = torch.tensor([float(batch.total_loss)], device=self.device)
        dist.all_reduce(stats)
        if self.rank == 0:
            row = OrderedDict(
                step=step,
                loss=round(stats.item() / self.world, 5),
                grad=round(batch.grad_norm.item(), 4),
                sec=round(time.perf_counter() - self.t0, 2),
            )
            print(" ".join(f"{k}={v}" for k, v in row.items()), file=sys.stderr)


class TrainingPipeline(EMAMixin, MetricsMixin):
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device = args.device
        model = Denoiser().to(self.device)
        self.transformer = nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
        self.noise_gen = torch.Generator(device="cpu").manual_seed(args.seed + self.rank)
        self.init_ema(model, args.ema_decay)
        self.init_metrics(args.log_every)

    # --- the parts of one step -------------------------------------------------
    def _get_next_batch(self, batch):
        shape = (self.args.batch_size, 4, 2, 6, 6)
        batch.latents = torch.randn(shape, generator=self.noise_gen).to(self.device, non_blocking=True)
        batch.noise = torch.randn(shape, generator=self.noise_gen).to(self.device, non_blocking=True)
        steps = torch.randint(0, 16, shape[:1], generator=self.noise_gen)
        batch.timesteps = steps.to(self.device, non_blocking=True)
        return batch

    def _transformer_forward_and_compute_loss(self, batch):
        sigma = (batch.timesteps.float() + 1).div(16).view(-1, 1, 1, 1, 1)
        noisy = (1 - sigma) * batch.latents + sigma * batch.noise
        target = batch.noise - batch.latents
        loss = F.mse_loss(self.transformer(noisy, batch.timesteps), target)
        loss = loss / self.args.gradient_accumulation_steps
        loss.backward()
        batch.total_loss += loss.item()  # EXPECT: hot-loop-sync
        return batch

    def _sync_context(self, micro):
        last = micro == self.args.gradient_accumulation_steps - 1
        return contextlib.nullcontext() if last else self.transformer.no_sync()

    def train_one_step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        for micro in range(self.args.gradient_accumulation_steps):
            batch = self._get_next_batch(batch)
            with self._sync_context(micro):
                batch = self._transformer_forward_and_compute_loss(batch)
        batch.grad_norm = nn.utils.clip_grad_norm_(self.transformer.parameters(), self.args.max_grad_norm)
        self.optimizer.step()
        self.update_ema(self.transformer.module)
        return batch

    def train(self):
        for step in range(1, self.args.max_train_steps + 1):
            batch = self.train_one_step(TrainingBatch())
            self.log_metrics(step, batch)
        dist.barrier()
        if self.rank == 0:
            drift = sum(
                (a - b).abs().sum()
                for a, b in zip(self.ema.parameters(), self.transformer.module.parameters())
            )
            print(f"done, ema distance {drift.item():.4f}", file=sys.stderr)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--batch_size", type=int, default=2)
    p.add_argument("--gradient_accumulation_steps", type=int, default=4)
    p.add_argument("--max_train_steps", type=int, default=10)
    p.add_argument("--max_grad_norm", type=float, default=1.0)
    p.add_argument("--ema_decay", type=float, default=0.99)
    p.add_argument("--log_every", type=int, default=5)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = parse_args()
    if torch.cuda.is_available():
        args.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(args.device)
        dist.init_process_group("nccl")
    else:
        args.device = torch.device("cpu")
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    TrainingPipeline(args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
