"""Lightning's Trainer, which starts its own processes; the argument selects the fault."""

import datetime as dt
import os
import signal
import sys
import time

import lightning as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, Dataset, IterableDataset

FAULT = sys.argv[1]


class Points(Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if FAULT == "interrupted":
            time.sleep(0.1)
        return torch.rand(8), torch.rand(2)


class Shards(IterableDataset):
    def __iter__(self):
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        for _ in range(60 if rank else 40):
            yield torch.rand(8), torch.rand(2)


class Regression(pl.LightningModule):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, width)

    def training_step(self, batch, batch_idx) -> torch.Tensor:
        if FAULT == "killed" and (self.global_rank, batch_idx) == (1, 6):
            os.kill(os.getpid(), signal.SIGKILL)
        if FAULT == "raises" and (self.global_rank, batch_idx) == (1, 7):
            batch = (batch[0][:, :7], batch[1])
        if FAULT == "slow" and (self.global_rank, batch_idx) == (1, 6):
            time.sleep(70)
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        if FAULT == "nan" and self.current_epoch == 1:
            loss = loss * float("inf") * 0
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, _) -> None:
        loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        if FAULT == "guarded" and self.global_rank == 0 and not self.trainer.sanity_checking:
            loss = self.all_gather(loss).mean()
        self.log("val_loss", loss, sync_dist=FAULT == "guarded")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


if __name__ == "__main__":
    iterable = FAULT == "uneven"
    train = DataLoader(Shards() if iterable else Points(), batch_size=4)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        max_epochs=4 if FAULT == "nan" else 2,
        log_every_n_steps=2,
        logger=False,
        strategy=DDPStrategy(process_group_backend="gloo", timeout=dt.timedelta(seconds=40)),
        num_sanity_val_steps=0,
        default_root_dir="results",
        callbacks=[EarlyStopping("train_loss", check_finite=True, verbose=True)]
        if FAULT == "nan"
        else [],
        precision="16-true-mixed" if FAULT == "config" else "32-true",
    )
    validation = None if iterable else DataLoader(Points(), batch_size=4)
    trainer.fit(Regression(), train, validation)
    if FAULT == "state":
        trainer.save_checkpoint("results/last.ckpt")
        trainer.fit(Regression(width=3), train, ckpt_path="results/last.ckpt")
    if trainer.is_global_zero:
        print(f"finished at step {trainer.global_step}", flush=True)
