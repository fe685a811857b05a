import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


class FileShards(IterableDataset):
    """The files of a folder, dealt out to the ranks; files have different numbers of samples."""

    def __init__(self, root):
        self.files = sorted(Path(root).glob("part-*.pt"))[dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        for path in self.files:
            features, labels = torch.load(path)
            yield from zip(features, labels)


class Scorer(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def train_epoch(model, loader, optimizer, device):
    seen = torch.zeros(2, dtype=torch.float64, device=device)
    with Join([model]):
        for features, labels in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(features.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen[0] += loss.detach() * len(labels)
            seen[1] += len(labels)
    dist.all_reduce(seen)
    return (seen[0] / seen[1]).item(), int(seen[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    model = DDP(Scorer().to(device), device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(FileShards(args.root), batch_size=256)
    for epoch in range(args.epochs):
        loss, samples = train_epoch(model, loader, optimizer, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f} over {samples} samples")
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "scorer.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
