import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

from tracker import CenterTracker


class Frames(Dataset):
    def __init__(self, path):
        self.items = torch.load(path)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        return {"name": item["name"], "frame": item["frame"], "heat": item["heat"]}


class FrameData(L.LightningDataModule):
    def __init__(self, root):
        super().__init__()
        self.root = root

    def setup(self, stage):
        self.train_set, self.val_set = Frames(f"{self.root}/train.pt"), Frames(f"{self.root}/val.pt")
        self.ground_truth = {item["name"]: item["cells"] for item in self.val_set.items}

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=8, shuffle=True, num_workers=4, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.val_set, batch_size=8, num_workers=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--devices", type=int, default=4)
    args = parser.parse_args()
    L.seed_everything(3, workers=True)
    checkpoint = ModelCheckpoint(every_n_epochs=1, save_top_k=-1)
    trainer = L.Trainer(
        devices=args.devices, strategy="ddp", max_epochs=40, callbacks=[checkpoint], num_sanity_val_steps=0
    )
    trainer.fit(CenterTracker(), datamodule=FrameData(args.data))


if __name__ == "__main__":
    main()
