"""Which rank writes which piece: planned by torch.distributed.checkpoint once, and kept while the state looks the same.

What all ranks hold alike is written by one of them; torch's planner gives it to the one that has least to write.
"""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from holdfast.errors import CheckpointFailed
from holdfast.runtime.checkpoint.rounds import Round, as_failure
from holdfast.runtime.checkpoint.versions import DTensor


@dataclass
class Plan:
    """This rank's ``items``, and on rank 0 the index of all of them. ``look`` is what the state looked like."""

    look: str
    items: list[WriteItem]
    index: Metadata | None


class Planner:
    """Plans saves of states that look alike from one to the next."""

    def __init__(self) -> None:
        self._kept: Plan | None = None
        self.torchs = DefaultSavePlanner()

    def plan(self, state: dict[str, Any], around: Round) -> Plan:
        """The plan of saving ``state``; ranks talk to each other only where the last plan does not fit.

        Raises:
            CheckpointFailed: on all ranks, where one cannot plan, or does not come.
        """
        self.torchs.set_up_planner(state, is_coordinator=around.rank == 0)
        look = _look(self.torchs.state_dict, around.world)
        if self._kept is None or self._kept.look != look:
            self.forget()  # should this one fail, all ranks plan anew
            self._kept = self._made(look, around)
        return self._kept

    def forget(self) -> None:
        """Plan anew at the next save."""
        self._kept = None

    def _made(self, look: str, around: Round) -> Plan:
        own: bytes | CheckpointFailed
        try:
            own = pickle.dumps(self.torchs.create_local_plan())
        except Exception as error:  # noqa: BLE001 - all ranks are told
            own = as_failure(around.subject, error)
        index: list[Metadata] = []

        def decide(given: list[bytes]) -> list[bytes]:
            plans, whole = self.torchs.create_global_plan([pickle.loads(each) for each in given])  # noqa: S301 - ours
            index.append(whole)
            return [pickle.dumps(each) for each in plans]

        final: SavePlan = pickle.loads(around.agree("plan", own, decide))  # noqa: S301 - rank 0's
        final = self.torchs.finish_plan(final)
        return Plan(look=look, items=list(final.items), index=index[0] if index else None)


def _look(flat: dict[str, Any], world: int) -> str:
    """What a plan depends on: names, shapes, dtypes, how tensors are spread, and the number of ranks."""
    seen = hashlib.sha256(str(world).encode())
    for name, value in flat.items():
        if isinstance(value, DTensor):
            seen.update(f"{name} {tuple(value.shape)} {value.dtype} {value.placements} {value.device_mesh}".encode())
        elif isinstance(value, torch.Tensor):
            seen.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        else:
            seen.update(f"{name} {type(value).__name__}".encode())
    return seen.hexdigest()
