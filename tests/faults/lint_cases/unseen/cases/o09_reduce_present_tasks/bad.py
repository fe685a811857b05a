"""Multi-task encoder: one trunk, one head per task, batches drawn from a mixture."""
import contextlib
import logging
import random
from collections import defaultdict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("multitask")
TASKS = {}


def task(name, **kwargs):
    """Class decorator that puts a head into the task table."""

    def add(cls):
        TASKS[name] = (cls, kwargs)
        return cls

    return add


class Head(nn.Module):
    def loss(self, hidden, example):
        raise NotImplementedError


@task("intent", classes=4)
class ClassHead(Head):
    def __init__(self, dim, classes):
        super().__init__()
        self.fc = nn.Linear(dim, classes)

    def loss(self, hidden, example):
        return nn.functional.cross_entropy(self.fc(hidden), example["target"].long() % self.fc.out_features)


@task("valence")
class RegressionHead(Head):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, 1)

    def loss(self, hidden, example):
        return (self.fc(hidden).squeeze(-1) - example["target"]).pow(2).mean()


@task("speaker", margin=0.2)
class ContrastHead(Head):
    def __init__(self, dim, margin):
        super().__init__()
        self.fc = nn.Linear(dim, dim, bias=False)
        self.margin = margin

    def loss(self, hidden, example):
        z = nn.functional.normalize(self.fc(hidden), dim=-1)
        return torch.relu(z @ z.t() - self.margin).mean()


class MultiTaskModel(nn.Module):
    def __init__(self, dim=16, inputs=8):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, dim), nn.Tanh(), nn.Linear(dim, dim))
        self.heads = nn.ModuleDict({name: cls(dim, **kw) for name, (cls, kw) in sorted(TASKS.items())})

    def forward(self, batch):
        grouped = defaultdict(list)
        for example in batch:
            grouped[example["task"]].append(example)
        losses = {}
        for name, examples in grouped.items():
            hidden = self.trunk(torch.stack([e["x"] for e in examples]))
            merged = {"target": torch.stack([e["target"] for e in examples])}
            losses[name] = self.heads[name].loss(hidden, merged)  # RELATED: taint-source
        return losses


class Mixture:
    """Draws small batches; the weights decide how often a task is seen."""

    def __init__(self, weights, batch_size, steps, seed):
        self.weights, self.batch_size, self.steps = weights, batch_size, steps
        self.rng = random.Random(seed)
        self.gen = torch.Generator().manual_seed(seed)

    def _example(self, name):
        return {
            "task": name,
            "x": torch.randn(8, generator=self.gen),
            "target": torch.rand((), generator=self.gen) * 4,
        }

    def __iter__(self):
        names, probs = zip(*self.weights.items())
        for _ in range(self.steps):
            yield [self._example(n) for n in self.rng.choices(names, probs, k=self.batch_size)]


def reduce_dict(values, average=True):
    """Mean of every entry over the processes, for display."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    if world < 2:
        return values
    with torch.no_grad():
        names = sorted(values)
        stacked = torch.stack([values[n].detach().float() for n in names])
        dist.all_reduce(stacked)  # EXPECT: mismatched-args
        if average:
            stacked /= world
    return dict(zip(names, stacked))


class MeterMixin:
    """Running means of the reduced losses."""

    def reset_meters(self):
        self.sums, self.counts = defaultdict(float), defaultdict(int)

    def meter(self, values):
        for name, value in values.items():
            self.sums[name] += float(value)
            self.counts[name] += 1

    @property
    def means(self):
        return {n: round(self.sums[n] / self.counts[n], 4) for n in sorted(self.sums)}


class MultiTaskTrainer(MeterMixin):
    def __init__(self, cfg):
        self.cfg = cfg
        self.rank = dist.get_rank()
        torch.manual_seed(cfg["seed"])
        self.model = DistributedDataParallel(MultiTaskModel(), find_unused_parameters=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg["lr"])
        self.reset_meters()

    @contextlib.contextmanager
    def optimizing(self):
        self.optimizer.zero_grad(set_to_none=True)
        yield
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def display(self, step, losses):
        reduced = reduce_dict(losses)
        self.meter(reduced)
        if self.rank == 0:
            log.info("step %d %s", step, self.means)

    def fit(self):
        mixture = Mixture(self.cfg["weights"], self.cfg["batch_size"], self.cfg["steps"], 31 + self.rank)
        for step, batch in enumerate(mixture):
            with self.optimizing():
                losses = self.model(batch)
                sum(losses.values()).backward()
            if step % self.cfg["log_every"] == 0:
                self.display(step, losses)


CONFIG = {
    "seed": 0,
    "lr": 3e-3,
    "steps": 24,
    "batch_size": 4,
    "log_every": 2,
    "weights": {"intent": 5, "valence": 3, "speaker": 1},
}


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    MultiTaskTrainer(CONFIG).fit()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
