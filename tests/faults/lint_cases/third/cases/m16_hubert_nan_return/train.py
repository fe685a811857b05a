import argparse

import torch
from lightning.pytorch import Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from lightning_modules import HuBERTPreTrainModule


def make_loader(count, batch_size, shuffle):
    data = TensorDataset(torch.randn(count, 64000), torch.randint(0, 100, (count, 200)))
    return DataLoader(data, batch_size=batch_size, shuffle=shuffle, drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--max-updates", type=int, default=250000)
    args = parser.parse_args()
    seed_everything(1337)
    trainer = Trainer(
        accelerator="gpu",
        devices=args.gpus,
        num_nodes=args.num_nodes,
        strategy="ddp",
        max_steps=args.max_updates,
        use_distributed_sampler=True,
    )
    model = HuBERTPreTrainModule(updates=args.max_updates)
    trainer.fit(model, make_loader(2048, 8, True), make_loader(128, 8, False))


if __name__ == "__main__":
    main()
