"""Image classifier whose helpers do nothing in a single process; what they do in many is set by the job's environment."""
import functools
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass(frozen=True)
class JobEnv:
    rank: int
    local_rank: int
    world_size: int
    dist_bn: str
    eval_every: int
    log_every: int

    @classmethod
    def read(cls) -> "JobEnv":
        env = os.environ
        return cls(
            rank=int(env.get("RANK", 0)),
            local_rank=int(env.get("LOCAL_RANK", 0)),
            world_size=int(env.get("WORLD_SIZE", 1)),
            dist_bn=env.get("DIST_BN", "reduce"),
            eval_every=int(env.get("EVAL_EVERY", 1)),
            log_every=int(env.get("LOG_EVERY", 8)),
        )

    @property
    def distributed(self) -> bool:
        return self.world_size > 1

    @property
    def primary(self) -> bool:
        return self.rank == 0


def is_dist():
    return dist.is_available() and dist.is_initialized()


def needs_group(default=None):
    """Skips the call (returning its first argument or `default`) where no process group exists."""

    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            if not is_dist() or dist.get_world_size() == 1:
                return args[0] if args and default is None else default
            return fn(*args, **kwargs)

        return wrapper

    return decorate


@needs_group()
def reduce_mean(t: torch.Tensor) -> torch.Tensor:
    out = t.detach().clone()
    dist.all_reduce(out)
    return out / dist.get_world_size()


@needs_group()
def distribute_bn(module: nn.Module, reduce: bool) -> nn.Module:
    for name, buf in module.named_buffers(recurse=True):
        if "running_mean" not in name and "running_var" not in name:
            continue
        if reduce:
            dist.all_reduce(buf)
            buf /= float(dist.get_world_size())
        else:
            dist.broadcast(buf, 0)
    return module


def init(env: JobEnv) -> torch.device:
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(env.local_rank)
    if env.distributed:
        dist.init_process_group("nccl" if cuda else "gloo")
    return torch.device("cuda", env.local_rank) if cuda else torch.device("cpu")


class ConvNet(nn.Sequential):
    def __init__(self, classes=4):
        super().__init__(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                         nn.Flatten(), nn.Linear(32, classes))


def synthetic(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    x = torch.randn(n, 1, 8, 8, generator=g) * 0.3
    for i, c in enumerate(y.tolist()):
        r, s = divmod(c, 2)
        x[i, 0, 4 * r:4 * r + 4, 4 * s:4 * s + 4] += 1.0
    return TensorDataset(x, y)


@torch.no_grad()
def validate(module, loader, device):
    module.eval()
    stats = torch.zeros(2, device=device)
    for x, y in loader:
        y = y.to(device)
        hits = (module(x.to(device)).argmax(1) == y).sum()
        stats += torch.stack([hits.float(), torch.full_like(hits, len(y)).float()])
    module.train()
    stats = reduce_mean(stats)
    return (stats[0] / stats[1]).item()


def main(epochs=3):
    env = JobEnv.read()
    device = init(env)
    train, val = synthetic(320, 0), synthetic(64, 1)
    train_sampler = DistributedSampler(train) if env.distributed else None
    val_sampler = DistributedSampler(val, shuffle=False) if env.distributed else None
    train_loader = DataLoader(train, batch_size=16, sampler=train_sampler, shuffle=train_sampler is None, drop_last=True)
    val_loader = DataLoader(val, batch_size=16, sampler=val_sampler)
    module = ConvNet().to(device)
    model = module
    if env.distributed:
        model = DistributedDataParallel(module, device_ids=[env.local_rank] if device.type == "cuda" else None)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    total = math.ceil(epochs * len(train_loader))
    step = 0
    for epoch in range(epochs):
        if train_sampler is not None:
            train_sampler.set_epoch(epoch)
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            step += 1
            if step % env.log_every == 0:
                mean = reduce_mean(loss)
                if env.primary:
                    print(f"[{step}/{total}] loss {mean.item():.4f}")
        if env.distributed and env.dist_bn in ("broadcast", "reduce"):
            distribute_bn(module, env.dist_bn == "reduce")
        if (epoch + 1) % env.eval_every == 0:
            acc = validate(module, val_loader, device)
            if env.primary:
                print(f"epoch {epoch} acc {acc:.3f}")
    if is_dist():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
