"""Event-driven trainer that resumes from an object store.

    torchrun --nproc_per_node=2 resume_demo.py
"""
import contextlib
import enum
import hashlib
import json
import logging
import os
import pathlib
import shutil
import tempfile
from typing import Optional, Protocol, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

log = logging.getLogger("engine")


class Event(enum.Enum):
    INIT = "init"
    FIT_START = "fit_start"
    BATCH_END = "batch_end"
    FIT_END = "fit_end"


class ObjectStore(Protocol):
    def get_object(self, key: str, dest: pathlib.Path) -> None: ...


class DirectoryStore:
    """Stand-in for S3: a directory plus an ``index.json`` with digests."""

    def __init__(self, root):
        self.root = pathlib.Path(root)

    def index(self):
        f = self.root / "index.json"
        return json.loads(f.read_text()) if f.exists() else {}

    def get_object(self, key, dest):
        digests = self.index()
        if key not in digests:
            raise FileNotFoundError(f"no object {key!r} in {self.root}")
        blob = (self.root / key).read_bytes()
        if hashlib.md5(blob).hexdigest() != digests[key]:
            raise OSError(f"object {key!r} is damaged")
        dest.write_bytes(blob)


class Callback:
    def run_event(self, event: Event, state: "State"):
        getattr(self, event.value)(state)

    def init(self, state): ...
    def fit_start(self, state): ...
    def batch_end(self, state): ...
    def fit_end(self, state): ...


class State:
    def __init__(self, model, optimizer, max_batches):
        self.model, self.optimizer = model, optimizer
        self.batch, self.max_batches = 0, max_batches
        self.loss: Optional[torch.Tensor] = None

    def load(self, payload):
        self.model.module.load_state_dict(payload["model"])
        self.optimizer.load_state_dict(payload["optimizer"])
        self.batch = payload["batch"]


class Autoresume(Callback):
    """Start from ``key`` in the store, or from scratch if that cannot be had."""

    def __init__(self, store: ObjectStore, key: str, scratch: pathlib.Path):
        self.store, self.key, self.scratch = store, key, scratch

    @contextlib.contextmanager
    def _staging(self):
        self.scratch.mkdir(parents=True, exist_ok=True)
        yield self.scratch / pathlib.Path(self.key).name
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def _stage(self, local: pathlib.Path) -> bool:
        if dist.get_rank() == 0:  # RELATED: guard
            log.info("fetching %s", self.key)
            self.store.get_object(self.key, local)  # EXPECT: raise-before-collective
        dist.barrier()  # RELATED: hidden-collective
        return True

    def fit_start(self, state):
        with self._staging() as local:
            if not self._stage(local):
                log.warning("starting from scratch")
                return
            state.load(torch.load(local, map_location="cpu"))


class LossLogger(Callback):
    def __init__(self, every=4):
        self.every = every

    def batch_end(self, state):
        if state.batch % self.every == 0:
            mean = state.loss.clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                log.info("batch %d loss %.4f", state.batch, mean / dist.get_world_size())


class Engine:
    def __init__(self, state: State, callbacks: Sequence[Callback]):
        self.state, self.callbacks = state, list(callbacks)
        self.emit(Event.INIT)

    def emit(self, event):
        for cb in self.callbacks:
            cb.run_event(event, self.state)

    def fit(self, batches):
        self.emit(Event.FIT_START)
        while self.state.batch < self.state.max_batches:
            x, y = batches(self.state.batch)
            loss = (self.state.model(x) - y).pow(2).mean()
            self.state.optimizer.zero_grad()
            loss.backward()
            self.state.optimizer.step()
            self.state.batch += 1
            self.state.loss = loss.detach()
            self.emit(Event.BATCH_END)
        self.emit(Event.FIT_END)


def synthetic(batch):
    g = torch.Generator().manual_seed(1000 * dist.get_rank() + batch)
    x = torch.randn(8, 4, generator=g)
    return x, x.sum(1, keepdim=True)


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    root = pathlib.Path(os.environ.get("CASE_TMP", tempfile.gettempdir()))
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    state = State(model, torch.optim.SGD(model.parameters(), lr=0.05), max_batches=12)
    resume = Autoresume(DirectoryStore(root / "store"), "run-7/latest.pt", root / "staging")
    Engine(state, [resume, LossLogger()]).fit(synthetic)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
