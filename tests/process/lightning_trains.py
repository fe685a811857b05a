"""Train with Lightning's own launcher: the script starts a copy of itself for local rank 1.

Rank 1 stops in its fourth step.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings

import lightning as L  # noqa: N812 - as in Lightning's own examples
import torch
from torch.utils.data import DataLoader, TensorDataset

STEP = 3


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: tuple[torch.Tensor, ...], index: int) -> torch.Tensor:
        if index == STEP:
            os.write(1, b"ready\n")
        if index == STEP and self.global_rank == 1:
            time.sleep(3600)  # GUILTY
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=sys.argv[1],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4))
