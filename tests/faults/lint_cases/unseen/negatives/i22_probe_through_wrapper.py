"""Forecaster with constant buffers; the wrapper never broadcasts them, and rank 0 probes it between steps without gradients."""
import contextlib
import os
from typing import Callable, Dict, List

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

WINDOW, HORIZON = 24, 6


class FourierFeatures(nn.Module):
    """Fixed frequencies, kept as a buffer so that they follow the module to its device."""

    def __init__(self, n_freq: int = 8):
        super().__init__()
        t = torch.linspace(0, 1, WINDOW)
        basis = [fn(2 * torch.pi * k * t) for k in range(1, n_freq + 1) for fn in (torch.sin, torch.cos)]
        self.register_buffer("basis", torch.stack(basis), persistent=False)

    def forward(self, x):
        return x @ self.basis.T / WINDOW


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = FourierFeatures()
        self.head = nn.Sequential(nn.Linear(16 + WINDOW, 64), nn.SiLU(), nn.LayerNorm(64), nn.Linear(64, HORIZON))
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        return self.head(torch.cat([self.features(x), x], dim=1)) * self.scale


def wrap(module: nn.Module, device: torch.device) -> DistributedDataParallel:
    return DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
    )


class WaveStream:
    def __init__(self, seed: int, device):
        self.gen, self.device = torch.Generator().manual_seed(seed), device

    def __call__(self, n: int):
        t = torch.arange(WINDOW + HORIZON) / WINDOW
        freq = 1 + 3 * torch.rand(n, 1, generator=self.gen)
        phase = 6.28 * torch.rand(n, 1, generator=self.gen)
        wave = torch.sin(6.28 * freq * t + phase).to(self.device)
        return wave[:, :WINDOW], wave[:, WINDOW:]


@contextlib.contextmanager
def evaluating(model: nn.Module):
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield model
    finally:
        model.train(was)


class Probe:
    """Looks at a few fixed inputs through the model it was given."""

    def __init__(self, model: nn.Module, stream: WaveStream, n: int = 32):
        self.model = model
        self.x, self.y = stream(n)
        self.history: List[float] = []

    def __call__(self) -> float:
        with evaluating(self.model) as model:
            err = (model(self.x) - self.y).abs().mean().item()
        self.history.append(err)
        return err


class Session:
    def __init__(self, device):
        self.device = device
        self.model = wrap(Forecaster().to(device), device)
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.stream = WaveStream(3000 + dist.get_rank(), device)
        self.probes: Dict[int, Callable[[], float]] = {}
        if dist.get_rank() == 0:
            self.probes[15] = Probe(self.model, WaveStream(1, device))
            self.probes[30] = Probe(self.model, WaveStream(2, device), n=64)

    def step(self):
        x, y = self.stream(32)
        loss = (self.model(x) - y).pow(2).mean()
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()

    def run(self, steps: int):
        for step in range(1, steps + 1):
            self.step()
            for every, probe in self.probes.items():
                if step % every == 0:
                    print(f"step {step} probe/{every} error {probe():.4f}")


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        Session(device).run(60)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
