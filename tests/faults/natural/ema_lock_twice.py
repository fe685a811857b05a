"""The EMA update takes a lock that is not re-entrant, and calls a method that takes it again, on rank 0 only."""
# case: processes=3 ending=hang causes=rank-missing-collective,stalled-outside-collectives ranks=0 framework=ddp

import copy
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EMA:
    """Averaged weights on rank 0, which a server thread reads for the demo page."""

    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.lock = threading.Lock()
        self.shadow = copy.deepcopy(model)
        self.version = 0

    def update(self, model):
        with self.lock:
            for mine, theirs in zip(self.shadow.parameters(), model.parameters()):
                mine.data.lerp_(theirs.data, 1 - self.decay)
            self.version += 1
            if self.version % 30 == 0:
                print(f"ema norm {self.norm():.4f}", flush=True)  # ALSO

    def norm(self):
        with self.lock:  # GUILTY
            return sum(p.norm().item() for p in self.shadow.parameters())


class Denoiser(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, width), nn.SiLU(), nn.Linear(width, 8))

    def forward(self, x, t):
        return self.net(torch.cat([x, t], dim=1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Denoiser()
    ema = EMA(model) if rank == 0 else None
    ddp = DDP(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    for step in range(100):
        x0, noise, t = torch.randn(16, 8), torch.randn(16, 8), torch.rand(16, 1)
        xt = (1 - t) * x0 + t * noise
        loss = nn.functional.mse_loss(ddp(xt, t), noise - x0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if ema is not None:
            ema.update(model)  # ALSO
    if rank == 0:
        print(f"final loss {loss.item():.4f}, ema version {ema.version}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
