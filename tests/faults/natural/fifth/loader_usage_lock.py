"""The loader worker of one rank is forked while a thread holds a lock, and the copy of the lock in the worker is never released.

Modelled on pytorch/pytorch#87995 and #1355 (fork with threads; the parent waits in the data loader).
"""
# case: processes=3 ending=hang causes=stalled-outside-collectives,python-lock-held,dataloader-worker-died,file-io-blocked,rank-missing-collective ranks=0 framework=ddp

import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class UsageReport:
    """Counts of the samples read, sent to the tracking service every now and then."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = {}

    def add(self, name):
        with self.lock:  # GUILTY
            self.counts[name] = self.counts.get(name, 0) + 1

    def send(self):
        while True:
            with self.lock:  # ALSO
                self.counts.clear()
                time.sleep(0.8)
            time.sleep(0.02)

    def start(self):
        threading.Thread(target=self.send, daemon=True).start()


usage = UsageReport()


class Tiles(Dataset):
    """Satellite tiles of 8 bands."""

    def __len__(self):
        return 360

    def __getitem__(self, index):
        usage.add("tiles")  # ALSO
        g = torch.Generator().manual_seed(index)
        return torch.randn(8, 12, 12, generator=g), index % 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        usage.start()  # ALSO
        time.sleep(0.2)
    torch.manual_seed(0)
    data = Tiles()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=12, sampler=sampler, num_workers=1)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(8 * 144, 32), nn.ReLU(), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for tiles, classes in loader:  # ALSO
            loss = nn.functional.cross_entropy(model(tiles), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
