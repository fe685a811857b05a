from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

from config import load_config
from launch import launched


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 40), nn.Softplus(), nn.Linear(40, 1))

    def forward(self, x):
        return self.body(x)


def samples(rank, device):
    g = torch.Generator().manual_seed(60 + rank)
    while True:
        x = torch.randn(16, 10, generator=g)
        yield x.to(device), (x[:, :5] * x[:, 5:]).sum(1, keepdim=True).to(device)


def sync_context(model, micro, accumulate):
    return nullcontext() if micro == accumulate - 1 else model.no_sync()


def train_step(model, opt, data, accumulate):
    opt.zero_grad(set_to_none=True)
    total = 0.0
    for micro in range(accumulate):
        x, y = next(data)
        with sync_context(model, micro, accumulate):
            loss = nn.functional.smooth_l1_loss(model(x), y) / accumulate
            loss.backward()
        total = total + loss.detach()
    opt.step()
    return total


def final_loss(model, data):
    with torch.no_grad():
        x, y = next(data)
        return nn.functional.smooth_l1_loss(model.module(x), y)


@launched(load_config)
def main(ctx, cfg):
    net = Regressor().to(ctx.device)
    model = DistributedDataParallel(net, device_ids=[ctx.device.index] if ctx.device.type == "cuda" else None)
    opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    data = samples(ctx.rank, ctx.device)
    for step in range(1, cfg.steps + 1):
        loss = train_step(model, opt, data, cfg.accumulate)
        if step % cfg.log_every == 0:
            ctx.say(f"step {step} local loss {loss.item():.4f}")
    loss = final_loss(model, data)
    if cfg.average_at_end:
        dist.all_reduce(loss)
        loss /= ctx.world_size
    ctx.say(f"{'mean' if cfg.average_at_end else 'local'} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
