import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn

from dataloader import eval_loader, load_dataset, train_loader
from trainer import Trainer


class BPR(nn.Module):
    def __init__(self, n_users, n_items, dim):
        super().__init__()
        self.user = nn.Embedding(n_users, dim)
        self.item = nn.Embedding(n_items, dim)

    def forward(self, users, items, negatives):
        u = self.user(users)
        return (u * self.item(items)).sum(-1), (u * self.item(negatives)).sum(-1)

    def full_sort(self, users):
        return self.user(users) @ self.item.weight.t()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--topk", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=2020)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(args.seed + dist.get_rank())
    train, test, n_users, args.n_items = load_dataset(args.dataset)
    trainer = Trainer(BPR(n_users, args.n_items, args.dim), torch.device("cuda", torch.cuda.current_device()), args)
    fit, score = train_loader(train, 2048), eval_loader(test, 256)
    for epoch in range(args.epochs):
        trainer.train_epoch(fit, epoch)
        result = trainer.evaluate(score)
        if dist.get_rank() == 0:
            print(epoch, result)
    dist.destroy_process_group()
