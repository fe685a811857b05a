"""Checkpoints of the fine-tuning loop.

``progress.pt`` and ``latest.json`` always describe the newest state; a restarted
job picks up whatever it finds there.
"""
import dataclasses
import io
import json
import os
import pathlib
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist


@dataclasses.dataclass
class Progress:
    step: int = 0
    samples: int = 0
    best: float = float("inf")

    def state_dict(self):
        return dataclasses.asdict(self)

    def load_state_dict(self, state):
        for key, value in state.items():
            setattr(self, key, value)


class Sink:
    """Where state goes.  Subclasses differ in the file format."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.root.mkdir(parents=True, exist_ok=True)

    def path(self, name) -> pathlib.Path:
        return self.root / name

    def put(self, name: str, obj: Any) -> None:
        raise NotImplementedError

    def get(self, name: str) -> Optional[Any]:
        raise NotImplementedError


class JsonSink(Sink):
    def put(self, name, obj):
        tmp = self.path(name + ".tmp")
        tmp.write_text(json.dumps(obj))
        os.replace(tmp, self.path(name))

    def get(self, name):
        f = self.path(name)
        return json.loads(f.read_text()) if f.exists() else None


class TorchSink(Sink):
    def put(self, name, obj):
        torch.save(obj, self.path(name))  # EXPECT: nonatomic-save

    def get(self, name):
        f = self.path(name)
        return torch.load(f, map_location="cpu") if f.exists() else None


def nbytes(obj) -> int:
    buf = io.BytesIO()
    torch.save(obj, buf)
    return buf.tell()


class CheckpointManager:
    def __init__(self, root, interval: int, **tracked):
        self.interval = interval
        self.tracked = tracked
        self.tensors = TorchSink(root)
        self.notes = JsonSink(root)

    @property
    def is_writer(self) -> bool:
        return dist.get_rank() == 0

    def due(self, step) -> bool:
        return step % self.interval == 0

    def collect(self) -> Dict[str, Any]:
        return {name: item.state_dict() for name, item in self.tracked.items()}

    def save(self):
        if self.is_writer:
            payload = self.collect()
            self.tensors.put("progress.pt", payload)
            self.notes.put("latest.json", {"step": payload["progress"]["step"], "bytes": nbytes(payload)})
        dist.barrier()

    def restore(self) -> bool:
        box = [self.tensors.get("progress.pt") if self.is_writer else None]
        dist.broadcast_object_list(box, src=0)
        if box[0] is None:
            return False
        for name, item in self.tracked.items():
            item.load_state_dict(box[0][name])
        return True
