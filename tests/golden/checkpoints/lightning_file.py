"""Generates Lightning checkpoints; run as a module with FOLDER KIND [--trained].

KIND is ``file`` (Trainer on one process), ``steady`` (the same without a scheduler) or ``sharded``
(Fabric's ModelParallelStrategy under torchrun). FOLDER gets ``saved.ckpt``, and ``truth.pt``. With
``steady CHECKPOINT`` Trainer goes on from that one instead, and FOLDER gets ``losses.json``.
"""

import json
import logging
import sys
import warnings
from pathlib import Path

import lightning
import torch
import torch.distributed as dist
from lightning.fabric.strategies import ModelParallelStrategy
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

from tests.golden.checkpoints.making import leave
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of


class Trained(lightning.LightningModule):
    """The common model as a LightningModule."""

    def __init__(self, *, frozen=True):
        super().__init__()
        self.net = model(frozen=frozen)
        self.losses = []

    def training_step(self, _batch, number):
        loss = loss_of(self.net, number)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = optimizer_of(self.net)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5), "interval": "step"}
        ]


class Saves(lightning.Callback):
    """Saves after a number of steps, and records what was saved."""

    def __init__(self, folder):
        self.folder = folder
        self.truth = {}

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == STEPS:
            trainer.save_checkpoint(f"{self.folder}/saved.ckpt")
            state = trainer.optimizers[0].state
            self.truth = {
                "model": {
                    name: each.detach().clone() for name, each in module.state_dict().items()
                },
                "optimizer": {
                    name: {key: each.clone() for key, each in state[param].items()}
                    for name, param in module.named_parameters()
                    if param in state
                },
            }


class Steady(Trained):
    """Without scheduler; the data depends on the step, not on the position in the epoch."""

    def training_step(self, batch, _number):
        return super().training_step(batch, self.trainer.global_step)

    def configure_optimizers(self):
        return optimizer_of(self.net)


def file(folder, *, frozen):
    """Use Trainer.save_checkpoint."""
    saves, module = Saves(folder), Trained(frozen=frozen)
    trained_by_lightning(folder, module, saves)
    torch.save({**saves.truth, "losses": module.losses[STEPS:]}, Path(folder, "truth.pt"))


def steady(folder, checkpoint=None):
    """Train without a scheduler, or resume from a checkpoint."""
    saves, module = Saves(folder), Steady()
    trained_by_lightning(folder, module, saves, checkpoint)
    if checkpoint is None:
        torch.save({**saves.truth, "losses": module.losses[STEPS:]}, Path(folder, "truth.pt"))
    else:
        Path(folder, "losses.json").write_text(json.dumps(module.losses))


def trained_by_lightning(folder, module, saves, checkpoint=None):
    """Train two steps more than the other generators."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=STEPS + 2,
        logger=False,
        enable_checkpointing=False,
        callbacks=[saves],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, torch.utils.data.DataLoader(range(STEPS + 2)), ckpt_path=checkpoint)


def sharded(folder, *, frozen):
    """Use Fabric.save under FSDP2."""
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    strategy = ModelParallelStrategy(
        lambda module, mesh: fully_shard(module, mesh=mesh["data_parallel"]),
        data_parallel_size=ranks,
        tensor_parallel_size=1,
    )
    fabric = lightning.Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    module = fabric.setup(model(frozen=frozen))
    optimizer = fabric.setup_optimizers(optimizer_of(module))
    for step in range(STEPS):
        optimizer.zero_grad()
        fabric.backward(loss_of(module, step, rank, ranks))
        optimizer.step()
    fabric.save(
        f"{folder}/saved.ckpt",
        {"model": module, "optimizer": optimizer, "epoch": 1, "global_step": STEPS},
    )
    whole = StateDictOptions(full_state_dict=True)
    inner = module.module
    truth = {
        "model": get_model_state_dict(inner, options=whole),
        "optimizer": get_optimizer_state_dict(inner, optimizer.optimizer, options=whole)["state"],
    }
    if rank == 0:
        torch.save(truth, Path(folder, "truth.pt"))
    dist.destroy_process_group()
    leave()


def main(folder, kind, *options):
    """Train, save, continue training."""
    if kind == "steady":
        steady(folder, *options)
        return
    {"file": file, "sharded": sharded}[kind](folder, frozen="--trained" not in options)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    main(*sys.argv[1:])
