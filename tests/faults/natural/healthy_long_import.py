"""Healthy: the script imports a package from a slow file system, which takes 14 s on all ranks, before torch is used."""
# case: processes=2 ending=well framework=lightning

import importlib.util
import logging
import sys
import tempfile
import warnings
from pathlib import Path

PACKAGE = """
import time
for _ in range(28):  # one file after the other from a network disk
    time.sleep(0.5)
CLASSES = 3
"""


def import_from_slow_disk():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "slow_package.py")
        file.write_text(PACKAGE)
        spec = importlib.util.spec_from_file_location("slow_package", file)
        module = importlib.util.module_from_spec(spec)
        sys.modules["slow_package"] = module
        spec.loader.exec_module(module)
    return module


slow_package = import_from_slow_disk()

import lightning as L  # noqa: E402
import torch  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitModel(L.LightningModule):
    def __init__(self, classes):
        super().__init__()
        self.layer = torch.nn.Linear(8, classes)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layer(x), y)
        self.log("train_loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main():
    x = torch.randn(256, 8)
    loader = DataLoader(TensorDataset(x, x[:, : slow_package.CLASSES].argmax(dim=1)), batch_size=16)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LitModel(slow_package.CLASSES), loader)
    if trainer.is_global_zero:
        print({k: round(v.item(), 3) for k, v in trainer.callback_metrics.items()})


if __name__ == "__main__":
    main()
