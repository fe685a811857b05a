import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from model import CaptionEncoder
from stream import CaptionStream


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        stream = CaptionStream(args.data, self.rank, dist.get_world_size())
        if self.rank == 0:
            print(f"{stream.count()} captions in {len(stream.shards)} shards")
        self.loader = DataLoader(stream, batch_size=args.batch_size, num_workers=1)
        model = CaptionEncoder().to(self.device)
        self.model = DistributedDataParallel(model, device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)

    def train_epoch(self, epoch):
        self.model.train()
        for step, batch in enumerate(self.loader):
            loss = self.model(batch["tokens"].to(self.device), batch["feature"].to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.rank == 0 and step % 50 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")

    def save(self, epoch):
        if self.rank == 0:
            torch.save(self.model.module.state_dict(), f"{self.args.out}/caption-{epoch}.pt")
        dist.barrier()

    def fit(self):
        if self.rank == 0:
            os.makedirs(self.args.out, exist_ok=True)
        for epoch in range(self.args.epochs):
            self.train_epoch(epoch)
            self.save(epoch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default="runs/caption")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    Trainer(args).fit()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
