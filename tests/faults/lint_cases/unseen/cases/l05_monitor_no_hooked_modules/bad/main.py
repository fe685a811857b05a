"""Train an ensemble whose members are spread over the processes, with activation probes."""
import argparse
import json
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn

from probes import Monitor


class GatedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.value(x) * torch.sigmoid(self.gate(x))


class LinearMember(nn.Module):
    """The plain baseline of the ensemble."""

    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        return self.proj(x)


MEMBERS = {
    "deep": lambda dim: nn.Sequential(GatedBlock(dim), GatedBlock(dim)),
    "shallow": lambda dim: nn.Sequential(GatedBlock(dim)),
    "linear": LinearMember,
}


def gather_objects(obj):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, obj)  # RELATED: hidden-collective
    return parts


def assign(members, rank, world):
    """Contiguous share of the member list; the early processes take the longer ones."""
    share, extra = divmod(len(members), world)
    start = rank * share + min(rank, extra)
    return members[start : start + share + (rank < extra)]


class EnsembleTrainer:
    def __init__(self, args):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(11 + self.rank)
        names = assign(args.members, self.rank, self.world)
        self.members = nn.ModuleDict({n: MEMBERS[n](args.dim) for n in names})
        self.readout = nn.Linear(args.dim, 1)
        self.opt = torch.optim.SGD([*self.members.parameters(), *self.readout.parameters()], lr=0.05)
        gather = gather_objects if self.world > 1 else None
        self.monitor = Monitor([GatedBlock], gather_fn=gather)
        for name, member in self.members.items():
            self.monitor.attach(member, name)

    def vote(self, x):
        own = sum(member(x) for member in self.members.values())
        return self.readout(own).squeeze(-1)

    def train_step(self, step):
        gen = torch.Generator().manual_seed(step)
        x = torch.randn(8, self.args.dim, generator=gen)
        target = x.sum(-1)
        pred = self.vote(x)
        total = pred.detach().clone()
        dist.all_reduce(total)
        residual = total - pred.detach()
        loss = ((pred + residual) / self.world - target).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def write_report(self, step, metrics):
        if self.rank != 0:
            return
        path = pathlib.Path(self.args.out) / "activations.jsonl"
        with path.open("a") as fh:
            fh.write(json.dumps({"step": step, **metrics}) + "\n")

    def run(self):
        for step in range(1, self.args.steps + 1):
            loss = self.train_step(step)
            if step % self.args.report_every == 0:
                self.write_report(step, self.monitor.gather_and_aggregate())
                if self.rank == 0:
                    print(f"step {step} loss {loss:.4f}")
        self.monitor.detach()
        dist.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--members", nargs="+", default=["deep", "shallow", "linear"], choices=sorted(MEMBERS))
    p.add_argument("--dim", type=int, default=8)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--report-every", type=int, default=2)
    p.add_argument("--out", default=os.environ.get("CASE_TMP", "."))
    args = p.parse_args()
    dist.init_process_group("gloo")
    EnsembleTrainer(args).run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
