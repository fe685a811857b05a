"""A miniature tensor-parallel decoding server.

Rank 0 receives requests and hands them to its peers; all ranks then run the same
scheduler over their own copy of the waiting queue.
"""
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Deque, Dict, List, Optional

import torch
import torch.distributed as dist


@dataclass
class ServerArgs:
    vocab: int = 32
    hidden: int = 16
    max_batch: int = 2
    max_new_tokens: int = 3
    waiting_timeout_s: float = 0.2
    metrics_flush_s: float = 0.3
    metrics_interval: int = 4
    out_dir: str = field(default_factory=lambda: os.environ.get("CASE_TMP", "."))


@dataclass
class Request:
    rid: str
    prompt: List[int]
    entry_time: float = 0.0
    output: List[int] = field(default_factory=list)

    def finished(self, limit: int) -> bool:
        return len(self.output) >= limit

    @property
    def tokens(self) -> List[int]:
        return self.prompt + self.output


class RowParallelLM:
    """One-layer language model; the hidden dimension is cut across the ranks."""

    def __init__(self, args: ServerArgs, rank: int, world: int):
        gen = torch.Generator().manual_seed(2)
        emb = torch.randn(args.vocab, args.hidden, generator=gen)
        out = torch.randn(args.hidden, args.vocab, generator=gen)
        self.emb = emb.chunk(world, dim=1)[rank]
        self.out = out.chunk(world, dim=0)[rank]

    def next_token(self, batch: List[Request]) -> List[int]:
        state = torch.stack([self.emb[r.tokens].mean(0) for r in batch])
        logits = state @ self.out
        dist.all_reduce(logits)  # RELATED: hidden-collective
        return logits.argmax(-1).tolist()


class Metrics:
    """Counters; only the front rank pushes them out."""

    def __init__(self, args: ServerArgs, rank: int):
        self.args, self.enabled = args, rank == 0
        self.counters: Dict[str, int] = {"iterations": 0, "tokens": 0, "aborted": 0}

    def add(self, **deltas):
        for key, delta in deltas.items():
            self.counters[key] += delta
        if self.enabled and self.counters["iterations"] % self.args.metrics_interval == self.args.metrics_interval - 1:
            self.flush()

    def flush(self):
        time.sleep(self.args.metrics_flush_s)  # stands for the push gateway
        with open(os.path.join(self.args.out_dir, "metrics.json"), "w") as fh:
            json.dump(self.counters, fh)


class Scheduler:
    def __init__(self, args: ServerArgs):
        self.args = args
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.model = RowParallelLM(args, self.rank, self.world)
        self.metrics = Metrics(args, self.rank)
        self.waiting: Deque[Request] = deque()
        self.running: List[Request] = []
        self.done: List[Request] = []

    # -- intake ---------------------------------------------------------------
    def receive(self, incoming: Optional[List[dict]]) -> None:
        box = [incoming if self.rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        now = time.perf_counter()
        self.waiting.extend(Request(entry_time=now, **raw) for raw in box[0] or ())

    def _abort_on_waiting_timeout(self) -> None:
        deadline = time.perf_counter() - self.args.waiting_timeout_s  # RELATED: taint-source
        expired = {r.rid for r in self.waiting if r.entry_time < deadline}
        if expired:
            self.waiting = deque(r for r in self.waiting if r.rid not in expired)
            self.metrics.counters["aborted"] += len(expired)

    # -- batching -------------------------------------------------------------
    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.args.max_batch:
            self.running.append(self.waiting.popleft())

    def next_batch(self) -> Optional[List[Request]]:
        self._abort_on_waiting_timeout()
        self._admit()
        return list(self.running) or None

    def _retire(self) -> None:
        keep = []
        for req in self.running:
            (self.done if req.finished(self.args.max_new_tokens) else keep).append(req)
        self.running = keep

    # -- one iteration --------------------------------------------------------
    def step(self) -> int:
        self.metrics.add(iterations=1)
        batch = self.next_batch()
        if batch is None:  # RELATED: guard
            return 0  # EXPECT: local-early-exit
        for req, token in zip(batch, self.model.next_token(batch)):
            req.output.append(token)
        self._retire()
        self.metrics.add(tokens=len(batch))
        return len(batch)


def traffic(rank: int):
    """What the HTTP side delivers before each iteration (front rank only)."""
    script = {0: ["a", "b"], 6: ["c"], 7: ["d"], 10: ["e", "f"]}
    for tick in range(16):
        rids = script.get(tick, [])
        yield [{"rid": r, "prompt": [ord(r) % 32, tick % 32]} for r in rids] if rank == 0 else None


def main():
    dist.init_process_group("gloo")
    scheduler = Scheduler(ServerArgs())
    produced = 0
    for incoming in traffic(scheduler.rank):
        scheduler.receive(incoming)
        produced += scheduler.step()
    if scheduler.rank == 0:
        print(f"{produced} tokens, {len(scheduler.done)} finished, {scheduler.metrics.counters}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
