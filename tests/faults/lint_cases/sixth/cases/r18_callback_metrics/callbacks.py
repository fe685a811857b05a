import csv
import json
import time
from pathlib import Path

import lightning.pytorch as pl


class CSVLogCallback(pl.Callback):
    """Appends one row per epoch to a CSV file next to the checkpoints."""

    def __init__(self, path, keys):
        super().__init__()
        self.path = Path(path)
        self.keys = list(keys)

    def on_fit_start(self, trainer, pl_module):
        if trainer.is_global_zero:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("w", newline="") as handle:
                csv.writer(handle).writerow(["epoch", *self.keys])

    def on_validation_epoch_end(self, trainer, pl_module):
        if trainer.sanity_checking:
            return
        if trainer.is_global_zero:
            metrics = trainer.callback_metrics
            row = [trainer.current_epoch]
            for key in self.keys:
                row.append(f"{metrics[key].item():.6f}" if key in metrics else "")
            with self.path.open("a", newline="") as handle:
                csv.writer(handle).writerow(row)


class ProgressFile(pl.Callback):
    """Keeps a small JSON file that the desktop application polls."""

    def __init__(self, path, every=20):
        super().__init__()
        self.path = Path(path)
        self.every = every

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_global_zero and batch_idx % self.every == 0:
            state = {"epoch": trainer.current_epoch, "batch": batch_idx, "time": time.time()}
            self.path.write_text(json.dumps(state))
