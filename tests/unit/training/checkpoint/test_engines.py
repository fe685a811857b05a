"""DeepSpeed engines save themselves, and their files are verified like all others."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

import holdfast
from holdfast.core import checkpoint_manifest
from tests.unit.training.checkpoint.jobs import flipped
from tests.unit.training.collectives.ranks import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
    ),
]


def engine_and_checkpoint(rank, root, stage, seed):
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    import deepspeed

    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # avoid compiling it on CPUs
    deepspeed.init_distributed("gloo")
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 33), torch.nn.Linear(33, 4))
    settings = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    return engine, holdfast.Checkpoint(root, model=engine, optimizer=optimizer)


def train(engine, steps):
    for _ in range(steps):
        loss = engine(torch.ones(1, 4)).square().sum()
        engine.backward(loss)
        engine.step()
    return loss.item()


def save_and_load(rank, root, stages):
    """Return for each ZeRO stage the expected losses, the losses after loading, and the loaded step."""
    return [of_stage(rank, root / str(stage), stage) for stage in stages]


def of_stage(rank, root, stage):
    engine, checkpoint = engine_and_checkpoint(rank, root, stage, seed=1)
    train(engine, 2)
    checkpoint.save(2)
    expected = train(engine, 2)
    checkpoint.save(4)
    if rank == 0:
        flipped(
            min(
                (root / checkpoint_manifest.folder_name(4) / "deepspeed" / "engine").glob(
                    "*model_states.pt"
                )
            )
        )
    torch.distributed.barrier()
    engine, checkpoint = engine_and_checkpoint(
        rank, root, stage, seed=7
    )  # another engine with other weights
    step = checkpoint.load().step
    return expected, train(engine, 2), step


@pytest.mark.matrix
def test_an_engine_resumes_from_its_checkpoint(tmp_path):
    for of_rank in run(
        2, save_and_load, tmp_path, tmp_path / "checkpoints", (1, 2, 3), limit_s=300
    ):
        for expected, losses, step in of_rank:
            assert losses == expected
            assert step == 2
