"""DeepSpeed's engines save themselves, and what they wrote is proven like all else."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

import holdfast
from holdfast import manifest
from tests.runtime.checkpoint.jobs import flipped
from tests.runtime.comm.ranks import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


def engine_and_checkpoint(rank, root):
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    import deepspeed

    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # which it would compile first, on CPUs
    deepspeed.init_distributed("gloo")
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    settings = {
        "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True,
    }  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    return engine, holdfast.Checkpoint(root, model=engine, optimizer=optimizer)


def train(engine, steps):
    for _ in range(steps):
        loss = engine(torch.ones(1, 4)).square().sum()
        engine.backward(loss)
        engine.step()
    return loss.item()


def there_and_back(rank, root):
    engine, checkpoint = engine_and_checkpoint(rank, root)
    train(engine, 2)
    checkpoint.save(2)
    wanted = train(engine, 2)
    checkpoint.save(4)
    if rank == 0:
        (path,) = (root / manifest.name_of(4) / "deepspeed" / "engine").glob("*model_states.pt")
        flipped(path)
    torch.distributed.barrier()
    step = checkpoint.load().step
    return wanted, train(engine, 2), step


def test_an_engine_goes_on_from_what_it_saved(tmp_path):
    for wanted, found, step in run(2, there_and_back, tmp_path, tmp_path / "checkpoints", limit_s=300):
        assert found == wanted
        assert step == 2
