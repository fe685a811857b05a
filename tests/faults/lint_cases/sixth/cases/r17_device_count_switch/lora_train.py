import argparse
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from context import RunContext


class LoRALinear(nn.Module):
    def __init__(self, base, rank, alpha):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up) * self.scale


def add_lora(module, rank, alpha):
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear):
            setattr(module, name, LoRALinear(child, rank, alpha))
        else:
            add_lora(child, rank, alpha)
    return module


def build_model(args):
    dims = [args.dim] + [4 * args.dim, args.dim] * args.depth
    layers = [m for a, b in zip(dims, dims[1:]) for m in (nn.Linear(a, b), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(args.dim, args.classes))
    if args.base:
        model.load_state_dict(torch.load(args.base, map_location="cpu"))
    return add_lora(model, args.rank, args.alpha)


def adapter_state(model):
    return {k: v.cpu() for k, v in model.state_dict().items() if k.endswith((".down", ".up"))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--base")
    parser.add_argument("--output", default="adapter")
    for name, value in (("dim", 768), ("depth", 6), ("classes", 20), ("rank", 16), ("alpha", 32),
                        ("batch-size", 32), ("epochs", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=2e-4)
    args = parser.parse_args()
    ctx = RunContext.create()
    data = torch.load(args.data, map_location="cpu")
    loader = ctx.loader(TensorDataset(data["x"], data["y"]), args.batch_size)
    model = ctx.wrap(build_model(args))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    for epoch in range(args.epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        losses = []
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(ctx.device)), y.to(ctx.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        value = ctx.mean(torch.stack(losses).mean())
        if ctx.is_main:
            print(f"epoch {epoch} loss {value:.4f} on {ctx.world_size} processes")
    if ctx.is_main:
        os.makedirs(args.output, exist_ok=True)
        torch.save(adapter_state(getattr(model, "module", model)), os.path.join(args.output, "adapter.pt"))
    ctx.close()


if __name__ == "__main__":
    main()
