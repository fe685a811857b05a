"""Collect running second moments of the gradients and export them for influence scoring.

The model is sharded with FSDP2; moments live next to the parameters as DTensors.
"""
import argparse
import os
import time
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--out", type=Path, default=Path(os.environ.get("CASE_TMP", "moments")))
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--beta2", type=float, default=0.99)
    p.add_argument("--width", type=int, default=16)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--skip-export", action="store_true")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def build_model(args, mesh):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(args.width) for _ in range(args.layers)))
    for block in model:
        fully_shard(block, mesh=mesh)
    model = fully_shard(model, mesh=mesh)
    if mesh.device_type == "cpu" and hasattr(model, "set_force_sum_reduction_for_comms"):
        model.set_force_sum_reduction_for_comms(True)
    return model


class SecondMoments:
    """Exponential average of squared gradients, one entry per trainable parameter."""

    def __init__(self, model, beta2):
        self.beta2 = beta2
        self.step = 0
        self.values = {n: torch.zeros_like(p) for n, p in model.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, model):
        self.step += 1
        for name, param in model.named_parameters():
            if param.grad is None:
                continue
            self.values[name].mul_(self.beta2).addcmul_(param.grad, param.grad, value=1 - self.beta2)

    def corrected(self):
        scale = 1.0 - self.beta2 ** max(self.step, 1)
        return {name: value / scale for name, value in self.values.items()}


def materialize(value):
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()  # RELATED: hidden-collective
    return value.detach().cpu()


def export_optimizer_pt(moments, path, param_names):
    """Write the moments in the layout of a plain ``optimizer.pt``."""
    corrected = moments.corrected()
    state = {}
    for idx, name in enumerate(param_names):
        state[idx] = {"step": moments.step, "exp_avg_sq": materialize(corrected[name])}
    groups = [{"params": list(range(len(param_names))), "betas": (0.9, moments.beta2)}]
    if dist.get_rank() == 0:
        tmp = path.with_suffix(".tmp")
        torch.save({"state": state, "param_groups": groups}, tmp)
        os.replace(tmp, path)
    return len(state)


@contextmanager
def timed(label, enabled=True):
    start = time.perf_counter()
    yield
    if enabled:
        print(f"{label}: {time.perf_counter() - start:.2f}s", flush=True)


class Collector:
    def __init__(self, args, mesh):
        self.args = args
        self.global_rank = dist.get_rank()
        self.mesh = mesh
        self.model = build_model(args, mesh)
        self.moments = SecondMoments(self.model, args.beta2)

    @property
    def verbose(self):
        return self.global_rank == 0

    def batches(self):
        gen = torch.Generator().manual_seed(100 + self.global_rank)
        for _ in range(self.args.steps):
            yield torch.randn(4, self.args.width, generator=gen)

    def collect(self):
        total = torch.zeros(())
        for batch in self.batches():
            loss = self.model(batch.to(self.args.device)).pow(2).mean()
            loss.backward()
            self.moments.update(self.model)
            self.model.zero_grad(set_to_none=True)
            total += loss.detach().cpu()
        dist.all_reduce(total)
        if self.verbose:
            print(f"mean loss {total.item() / (self.args.steps * dist.get_world_size()):.4f}")

    def finish(self):
        names = [n for n, p in self.model.named_parameters() if p.requires_grad]
        if self.global_rank == 0:
            self.args.out.mkdir(parents=True, exist_ok=True)
            (self.args.out / "params.txt").write_text("\n".join(names))
        dist.barrier()
        if self.args.skip_export:
            return
        if self.global_rank == 0:  # RELATED: guard
            count = export_optimizer_pt(self.moments, self.args.out / "optimizer.pt", names)  # EXPECT: rank-guarded-sharded-io
            print(f"exported {count} entries")
        dist.barrier()


def main():
    args = parse_args()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    mesh = init_device_mesh(args.device, (dist.get_world_size(),))
    collector = Collector(args, mesh)
    with timed("collect", enabled=collector.verbose):
        collector.collect()
    with timed("export", enabled=collector.verbose):
        collector.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
