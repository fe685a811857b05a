"""Sequence packing with admission control in front of a DDP step.

Every step first plans how the local samples are packed into rows, then all processes
settle on one recompute mode, then the packed rows go through the model.
"""
from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("packing")


class PlanningError(ValueError):
    pass


class Recompute(enum.Enum):
    NONE = 0
    SELECTIVE = 1
    FULL = 2


@dataclass
class Row:
    capacity: int
    samples: list[torch.Tensor] = field(default_factory=list)

    @property
    def used(self) -> int:
        return sum(len(s) for s in self.samples)

    def fits(self, sample) -> bool:
        return self.used + len(sample) <= self.capacity


@dataclass
class Plan:
    rows: list[Row]
    cost: float

    def tensors(self):
        for row in self.rows:
            flat = torch.cat(row.samples)
            yield torch.nn.functional.pad(flat, (0, row.capacity - len(flat)))


class CostModel:
    """Prices a row in arbitrary memory units; quadratic in the longest segment."""

    def __init__(self, linear=1.0, quadratic=0.02):
        self.linear, self.quadratic = linear, quadratic

    def row(self, row: Row) -> float:
        longest = max(len(s) for s in row.samples)
        if longest > row.capacity:
            raise PlanningError(f"segment of {longest} tokens exceeds row capacity {row.capacity}")  # EXPECT: local-early-exit
        return self.linear * row.used + self.quadratic * longest**2

    def plan(self, rows) -> float:
        return sum(self.row(r) for r in rows)


class FirstFitPlanner:
    def __init__(self, capacity: int, cost: CostModel):
        self.capacity, self.cost = capacity, cost

    def __call__(self, samples) -> Plan:
        rows: list[Row] = []
        for sample in sorted(samples, key=len, reverse=True):
            row = next((r for r in rows if r.fits(sample)), None)
            if row is None:
                row = Row(self.capacity)
                rows.append(row)
            row.samples.append(sample)
        return Plan(rows, self.cost.plan(rows))


class Admission:
    """Chooses the cheapest recompute mode under which every process stays in budget."""

    SAVING = {Recompute.NONE: 1.0, Recompute.SELECTIVE: 0.6, Recompute.FULL: 0.3}

    def __init__(self, budget: float):
        self.budget = budget

    @staticmethod
    def everywhere(flag: bool) -> bool:
        box = torch.tensor([int(flag)])
        dist.all_reduce(box, op=dist.ReduceOp.MIN)  # RELATED: hidden-collective
        return bool(box.item())

    def settle(self, plan: Plan) -> Recompute:
        for mode in Recompute:
            if self.everywhere(plan.cost * self.SAVING[mode] <= self.budget):
                return mode
        return Recompute.FULL


class TokenModel(torch.nn.Module):
    def __init__(self, vocab=64, dim=16):
        super().__init__()
        self.embed = torch.nn.Embedding(vocab, dim, padding_idx=0)
        self.mix = torch.nn.Linear(dim, dim)
        self.out = torch.nn.Linear(dim, vocab)

    def forward(self, tokens, mode: Recompute = Recompute.NONE):
        h = self.embed(tokens)
        if mode is Recompute.NONE:
            h = torch.relu(self.mix(h))
        else:
            h = torch.utils.checkpoint.checkpoint(lambda t: torch.relu(self.mix(t)), h, use_reentrant=False)
        return self.out(h)


class PackedTrainer:
    def __init__(self, capacity=48, budget=120.0, max_rows=4):
        torch.manual_seed(0)
        self.model = DistributedDataParallel(TokenModel())
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.planner = FirstFitPlanner(capacity, CostModel())
        self.admission = Admission(budget)
        self.max_rows = max_rows

    def step(self, samples):
        plan = self.planner(samples)
        mode = self.admission.settle(plan)
        rows = torch.stack(list(plan.tensors())[: self.max_rows])
        logits = self.model(rows, mode)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach(), mode


def document_stream(rank, steps, per_step=5):
    gen = torch.Generator().manual_seed(40 + rank)
    for step in range(steps):
        lengths = torch.randint(4, 40, (per_step,), generator=gen).tolist()
        if step == 3 and rank == 1:
            lengths[0] = 70
        yield [torch.randint(1, 64, (n,), generator=gen) for n in lengths]


def train(rank, steps=6):
    trainer = PackedTrainer()
    for i, samples in enumerate(document_stream(rank, steps)):
        loss, mode = trainer.step(samples)
        dist.all_reduce(loss)
        if rank == 0:
            log.info("step %d loss %.4f recompute %s", i, loss.item() / dist.get_world_size(), mode.name)


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        train(rank)
    except PlanningError as err:
        log.error("rank %d stops: %s", rank, err)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
