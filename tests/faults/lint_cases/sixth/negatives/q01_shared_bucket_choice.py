import argparse
import os
import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler


class Utterances(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(100, 1600, (n,), generator=gen).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(index)
        return torch.randn(self.lengths[index], 80, generator=gen), index % 500


def collate(items):
    feats = nn.utils.rnn.pad_sequence([f for f, _ in items], batch_first=True)
    return feats, torch.tensor([len(f) for f, _ in items]), torch.tensor([t for _, t in items])


class DynamicBucketingSampler(Sampler):
    """Every step draws one duration bucket and gives each rank its own batch out of it."""

    def __init__(self, lengths, num_buckets, batch_size, rank, world_size, seed):
        self.order = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.num_buckets = num_buckets
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        rng = random.Random(self.seed + self.epoch)
        chunk = -(-len(self.order) // self.num_buckets)
        buckets = [self.order[i : i + chunk] for i in range(0, len(self.order), chunk)]
        for bucket in buckets:
            rng.shuffle(bucket)
        step_size = self.batch_size * self.world_size
        while True:
            ready = [b for b in buckets if len(b) >= step_size]
            if not ready:
                return
            bucket = rng.choice(ready)
            group = [bucket.pop() for _ in range(step_size)]
            yield group[self.rank :: self.world_size]


class Recognizer(nn.Module):
    def __init__(self, dim, num_targets):
        super().__init__()
        self.rnn = nn.GRU(80, dim, batch_first=True)
        self.out = nn.Linear(dim, num_targets)

    def forward(self, feats, lengths):
        hidden, _ = self.rnn(feats)
        mask = torch.arange(hidden.size(1), device=feats.device) < lengths.unsqueeze(1)
        pooled = (hidden * mask.unsqueeze(-1)).sum(1) / lengths.unsqueeze(1)
        return self.out(pooled)


def main(args):
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed)
    dataset = Utterances(args.num_utts, args.seed)
    sampler = DynamicBucketingSampler(
        dataset.lengths, args.num_buckets, args.batch_size, dist.get_rank(), dist.get_world_size(), args.seed
    )
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=4)
    model = DDP(Recognizer(256, 500).to(device), device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (feats, lengths, targets) in enumerate(loader):
            loss = F.cross_entropy(model(feats.to(device), lengths.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-utts", type=int, default=20000)
    parser.add_argument("--num-buckets", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
