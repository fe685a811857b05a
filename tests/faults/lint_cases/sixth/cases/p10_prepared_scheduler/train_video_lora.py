import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader, Dataset


@dataclass
class OptimizationConfig:
    steps: int
    learning_rate: float
    batch_size: int
    gradient_accumulation_steps: int
    scheduler_type: str
    max_grad_norm: float = 1.0


class LatentDataset(Dataset):
    def __init__(self, num_clips, channels, frames):
        gen = torch.Generator().manual_seed(0)
        self.latents = torch.randn(num_clips, channels, frames, 16, 16, generator=gen)

    def __len__(self):
        return len(self.latents)

    def __getitem__(self, index):
        return self.latents[index]


class LoRALinear(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.base = nn.Linear(dim, dim)
        self.base.requires_grad_(False)
        self.down = nn.Linear(dim, rank, bias=False)
        self.up = nn.Linear(rank, dim, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class VideoTransformer(nn.Module):
    def __init__(self, channels, rank):
        super().__init__()
        self.layers = nn.ModuleList([LoRALinear(channels, rank) for _ in range(4)])

    def forward(self, latents, sigma):
        h = latents.movedim(1, -1) * (1.0 - sigma.view(-1, 1, 1, 1, 1))
        for layer in self.layers:
            h = h + F.silu(layer(h))
        return h.movedim(-1, 1)


class LoRATrainer:
    def __init__(self, cfg, seed, output):
        self.cfg = cfg
        self.output = output
        self.accelerator = Accelerator(gradient_accumulation_steps=cfg.gradient_accumulation_steps)
        set_seed(seed)
        self.transformer = VideoTransformer(channels=64, rank=16)
        self.dataset = LatentDataset(512, 64, 8)
        set_seed(seed + self.accelerator.process_index)

    def create_scheduler(self, optimizer):
        if self.cfg.scheduler_type == "linear":
            return LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=self.cfg.steps)
        if self.cfg.scheduler_type == "constant":
            return LinearLR(optimizer, start_factor=1.0, end_factor=1.0, total_iters=1)
        raise ValueError(f"unknown scheduler {self.cfg.scheduler_type}")

    def setup(self):
        trainable = [p for p in self.transformer.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=self.cfg.learning_rate)
        scheduler = self.create_scheduler(optimizer)
        loader = DataLoader(self.dataset, batch_size=self.cfg.batch_size, shuffle=True, drop_last=True)
        return self.accelerator.prepare(self.transformer, optimizer, loader, scheduler)

    def train(self):
        model, optimizer, loader, scheduler = self.setup()
        global_step = 0
        while global_step < self.cfg.steps:
            for latents in loader:
                with self.accelerator.accumulate(model):
                    noise = torch.randn_like(latents)
                    sigma = torch.rand(len(latents), device=latents.device)
                    loss = F.mse_loss(model(latents + noise * sigma.view(-1, 1, 1, 1, 1), sigma), noise - latents)
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(model.parameters(), self.cfg.max_grad_norm)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if self.accelerator.sync_gradients:
                    global_step += 1
                    if self.accelerator.is_main_process and global_step % 50 == 0:
                        print(f"step {global_step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
                if global_step >= self.cfg.steps:
                    break
        self.accelerator.wait_for_everyone()
        state = self.accelerator.get_state_dict(model)
        self.accelerator.save(state, self.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--scheduler-type", choices=["linear", "constant"], default="linear")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--output", default="lora.pt")
    a = parser.parse_args()
    config = OptimizationConfig(
        a.steps, a.learning_rate, a.batch_size, a.gradient_accumulation_steps, a.scheduler_type
    )
    LoRATrainer(config, a.seed, a.output).train()
