"""Train a toy denoiser with Accelerate; resumable, with rolling state snapshots."""
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, Dataset


class Spirals(Dataset):
    def __init__(self, n):
        t = torch.linspace(0, 3 * math.pi, n)
        self.points = torch.stack([t * torch.cos(t), t * torch.sin(t)], dim=-1) / 10

    def __len__(self):
        return len(self.points)

    def __getitem__(self, i):
        return self.points[i]


class Denoiser(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(3, width), torch.nn.SiLU(), torch.nn.Linear(width, 2)
        )

    def forward(self, x, sigma):
        return self.body(torch.cat([x, sigma[:, None]], dim=-1))


@dataclass(frozen=True)
class Cadence:
    """Fires every ``every`` steps, and never on step zero."""

    every: int
    last: int

    def __contains__(self, step: int) -> bool:
        return step > 0 and (step % self.every == 0 or step == self.last)


class Snapshots:
    """Owns everything below ``<project>/``: state folders, a manifest and samples."""

    def __init__(self, accelerator: Accelerator, cadence: Cadence):
        self.accelerator = accelerator
        self.cadence = cadence
        self.manifest = Path(accelerator.project_dir) / "manifest.json"
        self.entries = []

    @property
    def owns_disk(self) -> bool:
        return self.accelerator.is_main_process

    def __call__(self, step: int, loss: float):
        if step not in self.cadence:
            return
        self.accelerator.wait_for_everyone()
        if self.owns_disk:  # RELATED: guard
            self.write(step, loss)  # EXPECT: rank-guarded-sharded-io
        self.accelerator.wait_for_everyone()

    def write(self, step: int, loss: float):
        folder = self.accelerator.save_state()  # RELATED: hidden-collective
        self.record(step, loss, folder)

    def record(self, step, loss, folder):
        self.entries.append({"step": step, "loss": loss, "folder": str(folder)})
        if self.owns_disk:
            self.manifest.write_text(json.dumps(self.entries, indent=2))


class Loop:
    def __init__(self, steps=12, batch_size=8, use_fsdp=False, resume=None):
        root = os.environ.get("CASE_TMP", "denoiser-run")
        self.accelerator = Accelerator(
            cpu=not torch.cuda.is_available(),
            project_config=ProjectConfiguration(
                project_dir=root, automatic_checkpoint_naming=True, total_limit=2
            ),
            fsdp_plugin=FullyShardedDataParallelPlugin() if use_fsdp else None,
        )
        set_seed(3)
        model = Denoiser()
        opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
        loader = DataLoader(Spirals(256), batch_size, shuffle=True, drop_last=True)
        self.model, self.opt, self.loader, self.sched = self.accelerator.prepare(model, opt, loader, sched)
        self.snapshots = Snapshots(self.accelerator, Cadence(every=5, last=steps))
        self.steps, self.resume = steps, resume

    def stream(self):
        while True:
            yield from self.loader

    def loss_on(self, clean):
        sigma = torch.rand(len(clean), device=clean.device)
        noise = torch.randn_like(clean)
        pred = self.model(clean + sigma[:, None] * noise, sigma)
        return (pred - noise).pow(2).mean()

    def sample_preview(self):
        """A few denoised points for the eye, drawn from the bare module."""
        if not self.accelerator.is_main_process or self.accelerator.distributed_type == "FSDP":
            return
        net = self.accelerator.unwrap_model(self.model)
        with torch.no_grad():
            x = torch.randn(4, 2, device=self.accelerator.device)
            for s in (1.0, 0.5, 0.1):
                x = x - s * net(x, torch.full((4,), s, device=x.device))
        print("preview", x[0].tolist())

    def run(self):
        if self.resume:
            self.accelerator.load_state(self.resume)
        for step, clean in zip(range(1, self.steps + 1), self.stream()):
            with self.accelerator.accumulate(self.model):
                loss = self.loss_on(clean)
                self.accelerator.backward(loss)
                self.opt.step()
                self.sched.step()
                self.opt.zero_grad()
            shown = self.accelerator.reduce(loss.detach(), reduction="mean").item()
            self.accelerator.print(f"{step:4d} {shown:.4f}")
            self.snapshots(step, shown)
        self.sample_preview()
        self.accelerator.end_training()


def main():
    env = os.environ
    Loop(use_fsdp=env.get("USE_FSDP") == "1", resume=env.get("RESUME_FROM")).run()


if __name__ == "__main__":
    main()
