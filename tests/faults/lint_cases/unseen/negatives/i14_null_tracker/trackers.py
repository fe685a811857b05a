"""Experiment tracking. One process records; the others hold an object of the same shape that does nothing."""
import json
import os
import queue
import threading
from abc import ABC, abstractmethod
from pathlib import Path

import torch


class Tracker(ABC):
    active = False

    @abstractmethod
    def log(self, step, **values): ...

    @abstractmethod
    def save_checkpoint(self, name, state): ...

    @abstractmethod
    def barrier(self): ...

    @abstractmethod
    def gather(self): ...

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.barrier()
        return False


class NullTracker(Tracker):
    def log(self, step, **values):
        return None

    def save_checkpoint(self, name, state):
        return None

    def barrier(self):
        return None

    def gather(self):
        return {}


class RunTracker(Tracker):
    """Writes from a thread of its own, so that the training loop never waits for the disk."""

    active = True

    def __init__(self, root):
        self.root = Path(root)
        self.root.mkdir(parents=True, exist_ok=True)
        self._jobs = queue.Queue()
        self._last = {}
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self):
        while True:
            job, args = self._jobs.get()
            try:
                job(*args)
            except Exception as err:
                print(f"tracker: {err}")
            finally:
                self._jobs.task_done()

    def _append(self, row):
        with open(self.root / "log.jsonl", "a") as f:
            f.write(json.dumps(row) + "\n")

    def _store(self, name, state):
        path = self.root / name
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)

    def log(self, step, **values):
        self._last.update(values)
        self._jobs.put((self._append, ({"step": step, **values},)))

    def save_checkpoint(self, name, state):
        copy = {k: v.detach().cpu().clone() for k, v in state.items()}
        self._jobs.put((self._store, (name, copy)))

    def barrier(self):
        self._jobs.join()

    def gather(self):
        return dict(self._last)


def make_tracker(rank, root) -> Tracker:
    return RunTracker(root) if rank == 0 else NullTracker()
