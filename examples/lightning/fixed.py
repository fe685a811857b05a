"""Train with Lightning on two ranks; all ranks log the metric that is averaged over them."""

import lightning as L  # noqa: N812 - as in Lightning's documentation
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

Batch = tuple[torch.Tensor, torch.Tensor]


class Classifier(L.LightningModule):
    """Two classes, by the sign of the first of 8 values."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(8, 2)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        inputs, labels = batch
        return cross_entropy(self.model(inputs), labels)

    def validation_step(self, batch: Batch, _: int) -> None:
        """Log the loss of a held-out batch."""
        inputs, labels = batch
        loss = cross_entropy(self.model(inputs), labels)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.05)


def loader_of(samples: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    """Return random samples with their labels."""
    inputs = torch.randn(samples, 8)
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16)


def main() -> None:
    """Train for two epochs."""
    L.seed_everything(0)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(), loader_of(256), loader_of(128))
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss_epoch']:.3f}", flush=True)


if __name__ == "__main__":
    main()
