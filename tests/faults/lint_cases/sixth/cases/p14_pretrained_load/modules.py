import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F


class PotentialModule(L.LightningModule):
    """Per-atom energy model with a Lightning training recipe."""

    def __init__(self, width=128, num_species=100, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.species = nn.Embedding(num_species, width)
        self.trunk = nn.Sequential(nn.Linear(width + 3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.readout = nn.Linear(width, 1)

    def forward(self, pos, z):
        h = self.trunk(torch.cat([self.species(z), pos], dim=-1))
        return self.readout(h).squeeze(-1).sum(dim=1)

    def _loss(self, batch):
        pos, z, energy = batch
        return F.smooth_l1_loss(self(pos, z), energy)

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


class RandomFrames(L.LightningDataModule):
    def __init__(self, batch_size, num_frames=4096, num_atoms=48):
        super().__init__()
        self.batch_size = batch_size
        self.num_frames = num_frames
        self.num_atoms = num_atoms

    def _frames(self, seed, count):
        gen = torch.Generator().manual_seed(seed)
        pos = torch.randn(count, self.num_atoms, 3, generator=gen)
        z = torch.randint(1, 90, (count, self.num_atoms), generator=gen)
        return torch.utils.data.TensorDataset(pos, z, pos.pow(2).sum(dim=(1, 2)))

    def train_dataloader(self):
        return torch.utils.data.DataLoader(self._frames(0, self.num_frames), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self._frames(1, self.num_frames // 8), self.batch_size)
