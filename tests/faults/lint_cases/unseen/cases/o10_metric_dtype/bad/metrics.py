"""Metrics that are accumulated per process and combined once at the end of an evaluation."""
import functools
import math

import torch
import torch.distributed as dist

_METRICS = {}


def metric(name):
    def add(cls):
        _METRICS[name] = cls
        return cls

    return add


def build_metrics(names, **common):
    return {name: _METRICS[name.split("/")[0]](**common) for name in names}


def in_distributed(fn):
    """Skips the wrapped method in single-process runs."""

    @functools.wraps(fn)
    def call(self, value):
        if not dist.is_initialized() or dist.get_world_size(self.group) == 1:
            return value
        return fn(self, value)

    return call


class Metric:
    def __init__(self, device="cpu", group=None):
        self.device, self.group = device, group
        self.reset()

    def reset(self):
        raise NotImplementedError

    def update(self, **kwargs):
        raise NotImplementedError

    def compute(self):
        raise NotImplementedError

    @in_distributed
    def _combine(self, value):
        dist.all_reduce(value, group=self.group)  # RELATED: hidden-collective
        return value


@metric("loss")
class MeanMetric(Metric):
    def reset(self):
        self.state = 0
        self.count = 0

    def update(self, state, count=1):
        self.state += state
        self.count += count

    def compute(self):
        pair = torch.tensor([self.state, self.count], device=self.device)  # RELATED: taint-source
        total, count = self._combine(pair).tolist()  # EXPECT: mismatched-args
        return total / count if count else float("nan")


@metric("ppl")
class Perplexity(MeanMetric):
    def compute(self):
        mean = super().compute()
        return math.exp(min(mean, 50.0)) if mean == mean else mean


@metric("acc")
class Accuracy(Metric):
    def reset(self):
        self.hits = torch.zeros(2, dtype=torch.int64)

    def update(self, state, count):
        self.hits += torch.tensor([int(state), int(count)])

    def compute(self):
        hits, seen = self._combine(self.hits.to(self.device)).tolist()
        return hits / max(seen, 1)
