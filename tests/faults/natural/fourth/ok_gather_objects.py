"""Healthy: the ranks gather objects of very different sizes on rank 0, and one of them needs 18 s longer for its part of the search.

In the style of retrieval evaluations: each rank searches a part of the index, rank 0 merges the hits and broadcasts the metrics.
"""
# case: processes=4 ending=well causes=- ranks=- framework=torch.distributed limit_s=120

import heapq
import time

import torch
import torch.distributed as dist

QUERIES, TOP = 30, 5
PART_SIZES = {0: 400, 1: 9000, 2: 50, 3: 1200}


class PartialIndex:
    """Documents of one rank."""

    def __init__(self, rank, dim=24):
        g = torch.Generator().manual_seed(rank)
        self.rank = rank
        self.vectors = torch.nn.functional.normalize(torch.randn(PART_SIZES[rank], dim, generator=g), dim=-1)
        self.titles = [f"document {rank}-{i} " + "x" * (i % 50) for i in range(PART_SIZES[rank])]

    def search(self, query):
        scores = self.vectors @ query
        best = scores.topk(min(TOP, len(scores)))
        if self.rank == 1:
            time.sleep(0.6)  # its part is not compressed yet
        return [(score, self.titles[i]) for score, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]


def search_all(index, queries, rank):
    """Return the hits of all queries, with the cached pages if there are many documents."""
    hits = {number: index.search(query) for number, query in enumerate(queries)}
    pages = {title: title * 20 for title in index.titles} if rank == 1 else {}
    return {"rank": rank, "hits": hits, "pages": pages}


def merge(parts):
    merged = {}
    for number in range(QUERIES):
        merged[number] = heapq.nlargest(TOP, (hit for part in parts for hit in part["hits"][number]))
    return merged


def evaluate(index, round_number, rank, world):
    g = torch.Generator().manual_seed(1000 + round_number)
    queries = torch.nn.functional.normalize(torch.randn(QUERIES, 24, generator=g), dim=-1)
    part = search_all(index, queries, rank)
    parts = [None] * world if rank == 0 else None
    dist.gather_object(part, parts, dst=0)
    metrics = [None]
    if rank == 0:
        merged = merge(parts)
        metrics = [{"mean": sum(h[0][0] for h in merged.values()) / QUERIES, "pages": sum(len(p["pages"]) for p in parts)}]
    dist.broadcast_object_list(metrics, src=0)
    return metrics[0]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    index = PartialIndex(rank)
    for round_number in range(2):
        metrics = evaluate(index, round_number, rank, world)
        if rank == 0:
            print(f"round {round_number}: best score {metrics['mean']:.3f}, {metrics['pages']} pages", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
