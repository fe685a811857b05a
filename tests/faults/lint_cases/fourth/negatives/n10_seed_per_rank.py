import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler


def seed_everything(seed):
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


class Spectrograms(Dataset):
    def __init__(self, path):
        self.x, self.y = torch.load(path)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i].clone()
        start = random.randrange(x.shape[-1] - 20)
        x[:, start : start + random.randrange(20)] = 0
        x += 0.01 * torch.from_numpy(np.random.randn(*x.shape).astype(np.float32))
        return x, self.y[i]


class Net(nn.Module):
    def __init__(self, mels=80, classes=35):
        super().__init__()
        self.rnn = nn.GRU(mels, 256, 2, dropout=0.2, batch_first=True)
        self.out = nn.Linear(256, classes)

    def forward(self, x):
        return self.out(self.rnn(x.transpose(1, 2))[0][:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="speech.pt")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    seed_everything(args.seed + dist.get_rank())

    model = DistributedDataParallel(Net().cuda(), device_ids=[local_rank])
    data = Spectrograms(args.data)
    held_out = len(data) // 10
    train, _ = random_split(data, [len(data) - held_out, held_out], torch.Generator().manual_seed(args.seed))
    sampler = DistributedSampler(train, seed=args.seed, drop_last=True)
    loader = DataLoader(train, 64, sampler=sampler, num_workers=4, worker_init_fn=seed_worker, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
            torch.save(model.module.state_dict(), "speech_net.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
