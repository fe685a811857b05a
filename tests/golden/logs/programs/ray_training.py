"""TorchTrainer of Ray Train; rank 1 reads a batch that it cannot stack."""

import sys
import tempfile

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def batch(step: int, rank: int, *, ragged: bool) -> torch.Tensor:
    lengths = [8, 8, 7 if ragged and (step, rank) == (6, 1) else 8]
    return torch.stack([torch.rand(length) for length in lengths])


def train(settings: dict[str, bool]) -> None:
    rank = ray.train.get_context().get_world_rank()
    for step in range(12):
        gradient = batch(step, rank, ragged=settings["ragged"]).mean(dim=0)
        dist.all_reduce(gradient)
        ray.train.report({"loss": 3 / (step + 1)})
        if rank == 0 and step % 3 == 0:
            print(f"step {step} / 12 loss {3 / (step + 1):.4f}", flush=True)


with tempfile.TemporaryDirectory() as results:
    ray.init(num_cpus=3, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        train_loop_config={"ragged": sys.argv[1] == "raises"},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="tiny", storage_path=results),
    )
    print(f"finished: {trainer.fit().metrics}", flush=True)
