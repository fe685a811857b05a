"""Benchmark harness: requests are dealt out to the processes, per-sample metrics are combined at the end."""
import dataclasses
import json
import os
import sys
from collections import defaultdict
from typing import Any, Callable, Dict, List

import torch
import torch.distributed as dist
from torch import nn


@dataclasses.dataclass
class MetricSpec:
    name: str
    width: int
    finish: Callable[[torch.Tensor], Any]


METRIC_SPECS = {
    "cgf1": MetricSpec("cgf1", 2, lambda v: (v[0] / v[1].clamp(min=1)).item()),
    "iou_histogram": MetricSpec("iou_histogram", 10, lambda v: (v / v.sum().clamp(min=1)).tolist()),
    "negative_recall": MetricSpec("negative_recall", 3, lambda v: (v[:2].sum() / v[2].clamp(min=1)).item()),
}


@dataclasses.dataclass
class Request:
    doc_id: int
    image: torch.Tensor
    phrase_present: bool


class Communicator:
    """What the harness needs from torch.distributed; does nothing in a single process."""

    def __init__(self):
        self.active = dist.is_initialized()
        self.rank = dist.get_rank() if self.active else 0
        self.size = dist.get_world_size() if self.active else 1

    @property
    def is_root(self):
        return self.rank == 0

    def deal(self, items):
        return items[self.rank::self.size]

    def total(self, vector):
        if self.active:
            dist.all_reduce(vector)  # RELATED: hidden-collective
        return vector

    def sync(self):
        if self.active:
            dist.barrier()


class GroundingTask:
    """Referring segmentation with positive and negative phrases."""

    metric_names = tuple(METRIC_SPECS)

    def __init__(self, size=20, seed=0):
        gen = torch.Generator().manual_seed(seed)
        self.requests = [
            Request(i, torch.randn(6, generator=gen), phrase_present=(i // 3) % 2 == 0) for i in range(size)
        ]

    def process_results(self, request, score):
        """Metric name to a row of numbers for one answered request."""
        if not request.phrase_present:
            row = torch.zeros(3)
            row[int(score > 0.5)] = 1.0
            row[2] = 1.0
            return {"negative_recall": row, "cgf1": torch.tensor([float(score < 0.5), 1.0])}
        hist = torch.zeros(10)
        hist[min(int(score * 10), 9)] = 1.0
        return {"iou_histogram": hist, "cgf1": torch.tensor([float(score), 1.0])}


class TaskOutput:
    def __init__(self, task):
        self.task = task
        self.sample_metrics: Dict[str, List[torch.Tensor]] = defaultdict(list)
        self.results: Dict[str, Any] = {}

    def log_sample(self, values):
        for name, row in values.items():
            self.sample_metrics[name].append(row)  # RELATED: taint-source

    def local_sum(self, name):
        rows = self.sample_metrics.get(name) or [torch.zeros(METRIC_SPECS[name].width)]
        return torch.stack(rows).sum(0)


class Grounder(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    @torch.no_grad()
    def answer(self, request):
        return self.score(request.image).item()


class Evaluator:
    def __init__(self, model, tasks, comm, verbose=True):
        self.model, self.tasks, self.comm = model, tasks, comm
        self.verbose = verbose

    def _note(self, message):
        if self.verbose and self.comm.is_root:
            print(message, file=sys.stderr)

    def _answer_all(self, task):
        output = TaskOutput(task)
        for request in self.comm.deal(task.requests):
            output.log_sample(task.process_results(request, self.model.answer(request)))
        return output

    def _consolidate(self, output):
        for name in output.sample_metrics:  # RELATED: loop
            combined = self.comm.total(output.local_sum(name))  # EXPECT: order-divergence
            output.results[name] = METRIC_SPECS[name].finish(combined)
        return output.results

    def evaluate(self):
        table = {}
        for label, task in sorted(self.tasks.items()):
            self._note(f"running {label}: {len(task.requests)} requests")
            output = self._answer_all(task)
            self.comm.sync()
            table[label] = self._consolidate(output)
        return table


def write_table(table, comm):
    if comm.is_root:
        with open(os.path.join(os.environ.get("CASE_TMP", "."), "results.json"), "w") as fh:
            json.dump(table, fh, indent=1)
    comm.sync()


class InterleavedTask(GroundingTask):
    """Positive and negative phrases take turns."""

    def __init__(self, size=20, seed=1):
        super().__init__(size, seed)
        for request in self.requests:
            request.phrase_present = request.doc_id % 4 in (0, 3)


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    comm = Communicator()
    tasks = {"gold": GroundingTask(), "interleaved": InterleavedTask()}
    table = Evaluator(Grounder().eval(), tasks, comm).evaluate()
    write_table(table, comm)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
