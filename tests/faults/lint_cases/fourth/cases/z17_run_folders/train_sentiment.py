import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from writers import TensorboardLogs


class Trainer:
    def __init__(self, args):
        self.args = args
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl")
        self.logs = TensorboardLogs(args.serialization_dir, enabled=dist.get_rank() == 0)
        self.model = DDP(nn.EmbeddingBag(20000, 2).cuda(), device_ids=[self.local_rank])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def loaders(self):
        torch.manual_seed(13)
        data = TensorDataset(torch.randint(0, 20000, (10000, 40)), torch.randint(0, 2, (10000,)))
        train, valid = torch.utils.data.random_split(data, [9000, 1000], torch.Generator().manual_seed(0))
        return [
            DataLoader(part, 64, sampler=DistributedSampler(part, shuffle=part is train)) for part in (train, valid)
        ]

    @torch.no_grad()
    def validate(self, loader):
        counts = torch.zeros(2, device="cuda")
        for ids, labels in loader:
            counts[0] += (self.model(ids.cuda()).argmax(-1) == labels.cuda()).sum()
            counts[1] += len(labels)
        dist.all_reduce(counts)
        return (counts[0] / counts[1]).item()

    def run(self):
        train, valid = self.loaders()
        step = 0
        for epoch in range(self.args.epochs):
            train.sampler.set_epoch(epoch)
            for ids, labels in train:
                loss = nn.functional.cross_entropy(self.model(ids.cuda()), labels.cuda())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                step += 1
                self.logs.scalars(self.logs.train, {"loss": loss.item()}, step)
            accuracy = self.validate(valid)
            self.logs.scalars(self.logs.validation, {"accuracy": accuracy}, epoch * self.logs.interval)
        self.logs.close()
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--serialization-dir", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    Trainer(parser.parse_args()).run()
