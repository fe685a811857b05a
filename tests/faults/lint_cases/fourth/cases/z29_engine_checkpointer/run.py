import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

from checkpointer import DeepspeedCheckpointer
from ds_trainer import DeepspeedTrainer

CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 2},
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialization-dir", default="out")
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    torch.manual_seed(13370)
    data = TensorDataset(torch.randn(10_000, 300), torch.randint(0, 5, (10_000,)))
    model = nn.Sequential(nn.Linear(300, 1024), nn.Tanh(), nn.Linear(1024, 5))
    trainer = DeepspeedTrainer(model, CONFIG, data, DeepspeedCheckpointer(args.serialization_dir))
    trainer.train()


if __name__ == "__main__":
    main()
