import json
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_only


class EpochReport(L.Callback):
    """Collects per-class counts on all ranks; the report is written by rank zero alone."""

    def __init__(self, folder, classes):
        self.folder = Path(folder)
        self.classes = classes
        self.counts = None

    def setup(self, trainer, pl_module, stage):
        if trainer.is_global_zero:
            self.folder.mkdir(parents=True, exist_ok=True)

    def on_validation_epoch_start(self, trainer, pl_module):
        self.counts = torch.zeros(2, self.classes, device=pl_module.device)

    def on_validation_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
        right = outputs["prediction"] == batch[1]
        self.counts[0] += torch.bincount(batch[1][right], minlength=self.classes)
        self.counts[1] += torch.bincount(batch[1], minlength=self.classes)

    def on_validation_epoch_end(self, trainer, pl_module):
        total = pl_module.all_gather(self.counts).view(-1, 2, self.classes).sum(dim=0)
        accuracy = total[0] / total[1].clamp(min=1)
        pl_module.log("val/balanced", accuracy.mean(), rank_zero_only=False)
        if trainer.is_global_zero and not trainer.sanity_checking:
            self.write(trainer.current_epoch, accuracy.tolist())

    @rank_zero_only
    def write(self, epoch, accuracy):
        (self.folder / f"epoch_{epoch:03d}.json").write_text(json.dumps(accuracy))
