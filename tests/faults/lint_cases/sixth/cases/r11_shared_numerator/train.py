import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from trainer import Trainer


class DraftHead(nn.Module):
    def __init__(self, dim, vocab, steps):
        super().__init__()
        self.cells = nn.ModuleList([nn.Sequential(nn.Linear(dim, dim), nn.SiLU()) for _ in range(steps)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, hidden):
        logits = []
        for cell in self.cells:
            hidden = hidden + cell(hidden)
            logits.append(self.head(hidden))
        return logits


def make_loader(path, batch_size, shuffle):
    blob = torch.load(path, map_location="cpu")
    data = TensorDataset(blob["hidden"], blob["targets"], blob["mask"])
    sampler = DistributedSampler(data, shuffle=shuffle, drop_last=True)
    return DataLoader(data, batch_size, sampler=sampler, drop_last=True, pin_memory=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="train.pt")
    parser.add_argument("--val", default="val.pt")
    for name, value in (("dim", 1024), ("vocab", 32000), ("draft-steps", 3), ("batch-size", 8), ("epochs", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    trainer = Trainer(DraftHead(args.dim, args.vocab, args.draft_steps), args, torch.device("cuda", local_rank))
    train, val = make_loader(args.train, args.batch_size, True), make_loader(args.val, args.batch_size, False)
    for epoch in range(args.epochs):
        trainer.train_epoch(train, epoch)
        trainer.val_epoch(val, epoch)
        if dist.get_rank() == 0:
            torch.save(trainer.model.module.state_dict(), f"draft_{epoch}.pt")
    dist.destroy_process_group()
