"""Step, save and load of a training loop under DDP, FSDP2 (full and hybrid), and ZeRO-1, 2 and 3.

All use torch's AdamW, clip gradients to a norm of 1.0, and reduce gradients in the compute dtype,
so that they learn the same. Other framework settings are left at their defaults.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from model import Batch, Block, loss_of
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW

CLIP = 1.0
DECAY = 0.1


@dataclass(frozen=True)
class Job:
    """Settings common to all frameworks; ``copies``: rank groups with all weights (hybrid)."""

    device: torch.device
    samples: int  # of a step and rank
    lr: float
    bf16: bool
    copies: int = 1


class Trainer(Protocol):
    """A model under a framework."""

    @property
    def steps(self) -> int:
        """Return the completed steps, including those before the loaded checkpoint."""

    def step(self, batch: Batch) -> Tensor:
        """Run one step; return the loss before it, of this rank's batch."""

    def save(self, folder: Path) -> None:
        """Save weights and optimizer state in the framework's format; called on all ranks."""

    def load(self, folder: Path) -> None:
        """Load a checkpoint."""


class DDPTrainer:
    """Replicated model; gradients are averaged."""

    def __init__(self, model: nn.Module, job: Job) -> None:
        self.device, self.bf16 = job.device, job.bf16
        ids = [job.device] if job.device.type == "cuda" else None
        self.model = DistributedDataParallel(model, device_ids=ids)
        if job.bf16:
            self.model.register_comm_hook(None, bf16_compress_hook)
        self.optimizer = create_optimizer(model, job)

    @property
    def steps(self) -> int:
        """Return the optimizer's step count."""
        return step_count(self.optimizer)

    def step(self, batch: Batch) -> Tensor:
        """Run forward, backward, clipping and the optimizer."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            loss = loss_of(self.model, batch)
        loss.backward()
        clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def save(self, folder: Path) -> None:
        """Write one file from rank 0."""
        if dist.get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            torch.save(state, folder / "checkpoint.pt")
        dist.barrier()

    def load(self, folder: Path) -> None:
        """Read it on every rank; ``folder`` may be a file."""
        file = folder / "checkpoint.pt" if folder.is_dir() else folder
        state = torch.load(file, map_location=self.device, weights_only=True, mmap=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class FSDP2Trainer:
    """Fully sharded; with hybrid sharding, within each of several groups of ranks."""

    def __init__(self, model: nn.Module, job: Job) -> None:
        ranks = dist.get_world_size()
        if job.copies > 1:
            shape, names = (job.copies, ranks // job.copies), ("replicate", "shard")
            mesh = dist.init_device_mesh(job.device.type, shape, mesh_dim_names=names)
        else:
            mesh = dist.init_device_mesh(job.device.type, (ranks,))
        policy = (
            MixedPrecisionPolicy(param_dtype=torch.bfloat16) if job.bf16 else MixedPrecisionPolicy()
        )
        for block in [each for each in model.modules() if isinstance(each, Block)]:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.model = fully_shard(model, mesh=mesh, mp_policy=policy)
        self.optimizer = create_optimizer(self.model, job)  # after sharding

    @property
    def steps(self) -> int:
        """Return the optimizer's step count."""
        return step_count(self.optimizer)

    def step(self, batch: Batch) -> Tensor:
        """Run forward, backward, clipping and the optimizer."""
        loss = loss_of(self.model, batch)
        loss.backward()
        clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def save(self, folder: Path) -> None:
        """Write each rank's shards."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        """Read each rank's shards, from any number of ranks."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


class DeepSpeedTrainer:
    """Sharded optimizer state; gradients too in stage 2; weights too in stage 3."""

    def __init__(self, model: nn.Module, job: Job, stage: int) -> None:
        deepspeed = import_deepspeed(job.device)
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": job.samples,
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": stage, "overlap_comm": job.device.type == "cuda"},
            "bf16": {"enabled": job.bf16},
            "steps_per_print": sys.maxsize,
        }
        optimizer = create_optimizer(model, job)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        self.bf16 = job.bf16

    @property
    def steps(self) -> int:
        """Return DeepSpeed's step count."""
        return self.engine.global_steps

    def step(self, batch: Batch) -> Tensor:
        """Run a step of the engine, which does not cast inputs."""
        if self.bf16:
            batch = Batch(batch.images.bfloat16(), batch.words)
        loss = loss_of(self.engine, batch)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def save(self, folder: Path) -> None:
        """Write each rank's shards; DeepSpeed maintains `latest`."""
        self.engine.save_checkpoint(str(folder))

    def load(self, folder: Path) -> None:
        """Load the checkpoint in `latest`, on the number of ranks that saved it."""
        loaded, _ = self.engine.load_checkpoint(str(folder))
        if loaded is None:
            raise SystemExit(f"DeepSpeed found no checkpoint in {folder}")


#: What each strategy shards over the ranks.
STRATEGIES = {
    "ddp": "nothing",
    "fsdp2": "weights, gradients, optimizer state",
    "hybrid": "the same within each of two or more groups",
    "zero1": "optimizer state",
    "zero2": "gradients, optimizer state",
    "zero3": "weights, gradients, optimizer state",
}


def create_trainer(strategy: str, model: nn.Module, job: Job) -> Trainer:
    """Create the trainer of a strategy."""
    if strategy == "ddp":
        return DDPTrainer(model, job)
    if strategy in {"fsdp2", "hybrid"}:
        return FSDP2Trainer(model, job)
    return DeepSpeedTrainer(model, job, stage=int(strategy.removeprefix("zero")))


def create_optimizer(model: nn.Module, job: Job) -> AdamW:
    """Return AdamW with two groups: no decay for one-dimensional weights; no frozen weights."""
    trained = [each for each in model.parameters() if each.requires_grad]
    groups = [
        {"params": [each for each in trained if each.dim() > 1], "weight_decay": DECAY},
        {"params": [each for each in trained if each.dim() <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=job.lr, fused=job.device.type == "cuda")


def step_count(optimizer: AdamW) -> int:
    """Return the optimizer's step count."""
    return max(
        (int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0
    )


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed, avoiding its compilation of an all-reduce on CPUs (one minute)."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed  # noqa: PLC0415 - the other frameworks do not need it

    if device.type == "cpu":
        deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed(dist.get_backend())
    return deepspeed
