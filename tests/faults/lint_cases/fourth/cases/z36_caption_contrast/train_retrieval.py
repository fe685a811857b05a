import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from losses import contrastive_loss


class CachedPairs(Dataset):
    """Features of frozen encoders."""

    def __init__(self, path):
        blob = torch.load(path)
        self.visual, self.text = blob["visual"], blob["text"]

    def __len__(self):
        return len(self.visual)

    def __getitem__(self, i):
        return self.visual[i], self.text[i]


class Retriever(nn.Module):
    def __init__(self, visual=1024, text=4096, shared=256):
        super().__init__()
        self.visual = nn.Linear(visual, shared)
        self.text = nn.Linear(text, shared)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, visual, text):
        return self.visual(visual), self.text(text), self.scale


def train_epoch(model, loader, optimizer):
    total = 0.0
    for visual, text in loader:
        v, t, scale = model(visual.cuda(non_blocking=True), text.cuda(non_blocking=True))
        loss = contrastive_loss(v, t, scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", default="cc3m_features.pt")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=180)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    data = CachedPairs(args.pairs)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, drop_last=True, pin_memory=True)
    model = DistributedDataParallel(Retriever().cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss:.4f}")
            torch.save(model.module.state_dict(), "retriever.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
