"""An IndexError in an augmentation ends rank 1's epoch early without a message: the old iteration protocol takes it as the end.

Modelled on Lightning-AI/pytorch-lightning#11841 ("training freezes in a multi-gpu setting without throwing any errors").
"""
# case: processes=4 ending=hang causes=uneven-inputs,collective-mismatch,rank-missing-collective,rank-skips-collective ranks=1 framework=lightning limit_s=120

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

LABELS = ["cat", "dog", "bird", "fish"]


class AugmentedSamples:
    """A sequence of augmented samples; iterated over by index."""

    def __init__(self, rank, size=320):
        g = torch.Generator().manual_seed(rank)
        self.images = torch.randn(size, 24, generator=g)
        self.labels = torch.randint(0, len(LABELS), (size,), generator=g).tolist()
        self.crops = torch.randint(0, 6, (size,), generator=g).tolist()
        if rank == 1:
            self.crops[197] = 6
        self.windows = [(0, 24), (0, 20), (2, 22), (4, 24), (1, 23), (3, 21)]

    def augment(self, i):
        start, stop = self.windows[self.crops[i]]  # GUILTY
        image = torch.zeros(24)
        image[start:stop] = self.images[i, start:stop]
        return image

    def __getitem__(self, i):
        if i >= len(self.labels):
            raise IndexError(i)
        return self.augment(i), self.labels[i]


class Stream(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        for sample in self.samples:  # ALSO
            yield sample


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, len(LABELS)))

    def training_step(self, batch, batch_idx):
        image, label = batch
        loss = nn.functional.cross_entropy(self.net(image), label)
        if batch_idx % 10 == 0:
            self.print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item():.4f}", flush=True)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def train_dataloader(self):
        return DataLoader(Stream(AugmentedSamples(self.global_rank)), batch_size=8)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        accelerator="cpu",
        devices=4,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Classifier())


if __name__ == "__main__":
    main()
