import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from engine import Engine


class Tagger(nn.Module):
    def __init__(self, feat_dim, hidden, classes):
        super().__init__()
        self.encoder = nn.LSTM(feat_dim, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hidden, classes)

    def forward(self, feats):
        hidden, _ = self.encoder(feats)
        return self.out(hidden)


def make_dataset(path, split):
    blob = torch.load(os.path.join(path, f"{split}.pt"), map_location="cpu")
    return TensorDataset(blob["feats"], blob["targets"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.8)
    parser.add_argument("--clip", type=float, default=5.0)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    train_set = make_dataset(args.data, "train")
    train = DataLoader(train_set, args.batch_size, sampler=DistributedSampler(train_set), drop_last=True)
    evals = {k: DataLoader(make_dataset(args.data, k), args.batch_size) for k in ("dev", "devtrain")}
    engine = Engine(Tagger(80, 256, 42), torch.device("cuda", local_rank), args)
    for epoch in range(args.epochs):
        engine.train_epoch(train, epoch)
        engine.eval_epoch(evals, epoch)
        if dist.get_rank() == 0:
            torch.save(engine.model.module.state_dict(), f"epoch.{epoch:03d}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
