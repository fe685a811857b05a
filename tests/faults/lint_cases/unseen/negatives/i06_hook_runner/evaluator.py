"""Collects per-sample results from all processes; the metrics are computed once and handed to everybody."""
from itertools import chain, zip_longest

import torch.distributed as dist


def get_dist_info():
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def collect_results(results, size):
    """List of `size` results in the order of the data set on rank 0, None on the others."""
    rank, world = get_dist_info()
    if world == 1:
        return results[:size]
    parts = [None] * world if rank == 0 else None
    dist.gather_object(results, parts, dst=0)
    if rank != 0:
        return None
    interleaved = chain.from_iterable(zip_longest(*parts))
    return [r for r in interleaved if r is not None][:size]


class Accuracy:
    prefix = ""

    def compute(self, results):
        return {"acc": sum(p == t for p, t in results) / len(results)}


class Evaluator:
    def __init__(self, *metrics):
        self.metrics = metrics
        self._results = []

    def process(self, pred, target):
        self._results.extend(zip(pred.tolist(), target.tolist()))

    def evaluate(self, size):
        results, self._results = collect_results(self._results, size), []
        rank, world = get_dist_info()
        box = [None]
        if rank == 0:
            box = [{k: v for m in self.metrics for k, v in m.compute(results).items()}]
        if world > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]
