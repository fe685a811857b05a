import argparse

import torch
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, Dataset

from detector import GridDetector


class PlantDataset(Dataset):
    """Tiles of field images; many tiles have no plants at all."""

    def __init__(self, size=2000, image=256):
        self.size = size
        self.image = image

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(0, 3, (1,), generator=g))
        xy = torch.rand(n, 2, generator=g) * (self.image - 40)
        wh = torch.rand(n, 2, generator=g) * 30 + 10
        return torch.rand(3, self.image, self.image, generator=g), torch.cat([xy, xy + wh], dim=1)


def collate(batch):
    return torch.stack([b[0] for b in batch]), [b[1] for b in batch]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    seed_everything(0, workers=True)
    loader = DataLoader(PlantDataset(), batch_size=2, shuffle=True, collate_fn=collate, num_workers=4)
    trainer = Trainer(accelerator="gpu", devices=args.devices, strategy="ddp", max_epochs=args.epochs)
    trainer.fit(GridDetector(), loader)


if __name__ == "__main__":
    main()
