"""Data-parallel pre-training loop with checkpoints written in the background."""
from __future__ import annotations

import concurrent.futures as cf
import json
import os
import pathlib
import tempfile
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(slots=True)
class Snapshot:
    step: int
    tensors: dict[str, Tensor]
    extra: dict[str, Any] = field(default_factory=dict)

    def shard(self, index: int, count: int) -> dict[str, Tensor]:
        names = sorted(self.tensors)
        return {n: self.tensors[n] for n in names[index::count]}

    @classmethod
    def of(cls, module: nn.Module, step: int, **extra: Any) -> "Snapshot":
        return cls(step, {k: v.detach().cpu().clone() for k, v in module.state_dict().items()}, extra)


@dataclass(slots=True, frozen=True)
class ShardEntry:
    file: str
    names: tuple[str, ...]
    nbytes: int


class ShardWriter:
    def __init__(self, root: pathlib.Path, rank: int, world: int):
        self.root, self.rank, self.world = root, rank, world

    def folder(self, step: int) -> pathlib.Path:
        path = self.root / f"step-{step:06d}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, snap: Snapshot) -> ShardEntry:
        part = snap.shard(self.rank, self.world)
        name = f"shard-{self.rank}-of-{self.world}.pt"
        torch.save(part, self.folder(snap.step) / name)
        return ShardEntry(name, tuple(part), sum(t.numel() * t.element_size() for t in part.values()))

    def write_manifest(self, step: int, entries: list[ShardEntry]) -> None:
        doc = {"step": step, "shards": [{"file": e.file, "names": e.names, "bytes": e.nbytes} for e in entries]}
        (self.folder(step) / "manifest.json").write_text(json.dumps(doc, indent=1))


class AsyncCheckpointer:
    """``save`` returns at once; at most one write is under way."""

    def __init__(self, root: pathlib.Path):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.writer = ShardWriter(root, self.rank, self.world)
        self._pool = cf.ThreadPoolExecutor(max_workers=1, thread_name_prefix="ckpt")
        self._pending: cf.Future | None = None

    def wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def save(self, snap: Snapshot) -> None:
        self.wait()
        self._pending = self._pool.submit(self._persist, snap)

    def _persist(self, snap: Snapshot) -> None:
        mine = self.writer.write(snap)
        entries: list[Any] = [None] * self.world
        dist.all_gather_object(entries, mine)  # EXPECT: thread-collective
        if self.rank == 0:
            self.writer.write_manifest(snap.step, entries)

    def close(self) -> None:
        self.wait()
        self._pool.shutdown()

    def __enter__(self) -> "AsyncCheckpointer":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def token_stream(rank: int, vocab: int, shape: tuple[int, int]) -> Iterator[Tensor]:
    gen = torch.Generator().manual_seed(rank)
    while True:
        yield torch.randint(0, vocab, shape, generator=gen)


class Bigram(nn.Module):
    def __init__(self, vocab: int, dim: int):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mix(self.emb(ids))))


def every(n: int) -> Callable[[int], bool]:
    return lambda step: step % n == 0


def train(root: pathlib.Path, steps: int = 60, vocab: int = 512, dim: int = 128) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(Bigram(vocab, dim))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = token_stream(dist.get_rank(), vocab, (4, 17))
    save_now, log_now = every(5), every(10)

    with AsyncCheckpointer(root) as ckpt:
        for step in range(1, steps + 1):
            ids = next(data)
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if save_now(step):
                ckpt.save(Snapshot.of(model.module, step, tokens=step * ids.numel()))
            if log_now(step):
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if dist.get_rank() == 0:
                    print(f"step {step:4d}  loss {mean.item() / dist.get_world_size():.4f}", flush=True)


def main() -> None:
    dist.init_process_group("gloo")
    try:
        train(pathlib.Path(os.environ.get("CASE_TMP", tempfile.gettempdir())) / "ckpts")
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
