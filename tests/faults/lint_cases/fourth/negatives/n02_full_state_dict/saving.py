from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class FullCheckpoint:
    """Consolidates the sharded weights in the memory of rank 0."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)

    @property
    def writer(self):
        return dist.get_rank() == 0

    def consolidate(self, model):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, self.policy):
            return model.state_dict()

    def save(self, model, step):
        state = self.consolidate(model)
        if not self.writer:
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"model_{step}.pt"
        temporary = path.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.rename(path)
        return path
