import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from evaluator import Evaluator


def parity_dataset(size, width, seed):
    gen = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2, (size, width), generator=gen).float()
    return TensorDataset(bits, bits.sum(dim=1).long() % 2)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(args.seed)
        self.net = nn.Sequential(
            nn.Linear(args.width, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2)
        ).to(self.device)
        self.model = DDP(self.net, device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        train_set = parity_dataset(args.train_size, args.width, 0)
        self.sampler = DistributedSampler(train_set, shuffle=True, drop_last=True)
        self.train_loader = DataLoader(train_set, args.batch_size, sampler=self.sampler, drop_last=True)
        self.evaluators = [
            Evaluator("eval", parity_dataset(args.eval_size, args.width, 1), args.batch_size, self.device),
            Evaluator("long", parity_dataset(args.eval_size // 7, args.width, 2), args.batch_size, self.device),
        ]
        torch.manual_seed(args.seed + 1 + dist.get_rank())

    def evaluate(self):
        results = {}
        for evaluator in self.evaluators:
            results.update(evaluator.run(self.net))
        return results

    def fit(self):
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for x, y in self.train_loader:
                loss = F.cross_entropy(self.model(x.to(self.device)), y.to(self.device))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            metrics = self.evaluate()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}", {k: round(v, 5) for k, v in metrics.items()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--train-size", type=int, default=50000)
    parser.add_argument("--eval-size", type=int, default=1037)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=17)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    Trainer(cli).fit()
    dist.destroy_process_group()
