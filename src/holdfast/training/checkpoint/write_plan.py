"""Plan which rank writes which shard, with torch.distributed.checkpoint's planner.

The plan is cached while the state's layout is unchanged. Replicated data is written by one rank:
torch's planner picks the one with the least to write.
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

from holdfast.core.errors import CheckpointFailed
from holdfast.training.checkpoint.store_agreement import StoreAgreement, to_checkpoint_failed
from holdfast.training.checkpoint.torch_versions import DTensor


@dataclass
class ShardPlan:
    """This rank's ``items``, and on rank 0 the index of all items.

    ``layout`` is the hash of the state's layout.
    """

    layout: str
    items: list[WriteItem]
    index: Metadata | None


class SavePlanner:
    """Plan saves, reusing the plan while the layout is unchanged."""

    def __init__(self) -> None:
        self._cached: ShardPlan | None = None
        self.torch_planner = DefaultSavePlanner()

    def plan(self, state: dict[str, Any], agreement: StoreAgreement) -> ShardPlan:
        """Return the plan for saving ``state``; ranks communicate only if the cache does not match.

        Raises:
            CheckpointFailed: on all ranks, if planning fails on one or one does not answer in time.
        """
        self.torch_planner.set_up_planner(state, is_coordinator=agreement.rank == 0)
        layout = _layout_hash(self.torch_planner.state_dict, agreement.world)
        if self._cached is None or self._cached.layout != layout:
            self.forget()  # if planning fails, all ranks plan again
            self._cached = self._create_plan(layout, agreement)
        return self._cached

    def forget(self) -> None:
        """Discard the cached plan."""
        self._cached = None

    def _create_plan(self, layout: str, agreement: StoreAgreement) -> ShardPlan:
        own: bytes | CheckpointFailed
        try:
            own = pickle.dumps(self.torch_planner.create_local_plan())
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            own = to_checkpoint_failed(agreement.subject, error)
        index: list[Metadata] = []

        def decide(plans_by_rank: list[bytes]) -> list[bytes]:
            local_plans = [pickle.loads(encoded) for encoded in plans_by_rank]  # noqa: S301 - ours
            plans, metadata = self.torch_planner.create_global_plan(local_plans)
            index.append(metadata)
            return [pickle.dumps(encoded) for encoded in plans]

        final: SavePlan = pickle.loads(agreement.agree("plan", own, decide))  # noqa: S301 - rank 0's
        final = self.torch_planner.finish_plan(final)
        return ShardPlan(layout=layout, items=list(final.items), index=index[0] if index else None)


def _layout_hash(tensors: dict[str, Any], world: int) -> str:
    """Hash what a plan depends on: names, shapes, dtypes, sharding, and world size."""
    digest = hashlib.sha256(str(world).encode())
    for name, value in tensors.items():
        if isinstance(value, DTensor):
            sharding = f"{value.placements} {value.device_mesh}"
            digest.update(f"{name} {tuple(value.shape)} {value.dtype} {sharding}".encode())
        elif isinstance(value, torch.Tensor):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        else:
            digest.update(f"{name} {type(value).__name__}".encode())
    return digest.hexdigest()
