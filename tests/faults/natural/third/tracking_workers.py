"""The loader workers of rank 0 are forked while the upload thread of its tracker holds a lock, which the dataset takes for each example.

In the style of an image script with a tracker that uploads statistics in a thread (on rank 0 only).
"""
# case: processes=2 ending=hang causes=dataloader-worker-died,rank-missing-collective ranks=0 framework=ddp

import argparse
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Tracker:
    """Counts events and uploads the counts from time to time."""

    def __init__(self, upload_every=1.0, upload_s=0.0):
        self.counts, self.lock = {}, threading.Lock()
        self.upload_every, self.upload_s = upload_every, upload_s
        if upload_s:
            threading.Thread(target=self.uploader, daemon=True).start()

    def count(self, name):
        with self.lock:  # ALSO
            self.counts[name] = self.counts.get(name, 0) + 1

    def uploader(self):
        while True:
            with self.lock:
                time.sleep(self.upload_s)  # the request to the server
                self.counts.clear()
            time.sleep(self.upload_every)


class Images(Dataset):
    def __init__(self, n, tracker):
        self.x = torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(0))
        self.tracker = tracker

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        image = self.x[i]
        if i % 2:
            image = image.flip(-1)
            self.tracker.count("flipped")  # ALSO
        return image, i % 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tracker = Tracker(upload_s=3.0 if rank == 0 else 0.0)
    time.sleep(0.2)
    data = Images(256, tracker)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=args.workers)
    model = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:  # GUILTY
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
