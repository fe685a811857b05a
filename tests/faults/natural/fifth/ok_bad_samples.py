"""Healthy: loader workers meet samples that cannot be read, log an error with a traceback and take the next one; some reads take seconds.

In the style of data sets of downloaded images.
"""
# case: processes=2 ending=well causes=- ranks=- framework=ddp limit_s=120

import logging
import time
import zlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("images")


class Images(Dataset):
    def __init__(self, size=320):
        self.size = size

    def __len__(self):
        return self.size

    def read(self, index):
        g = torch.Generator().manual_seed(index)
        pixels = torch.randint(0, 256, (3 * 20 * 20,), generator=g, dtype=torch.uint8)
        payload = zlib.compress(bytes(pixels.tolist()))
        if index % 29 == 7:
            payload = payload[: len(payload) // 2]
        if index % 100 == 50:
            time.sleep(4)
        return torch.frombuffer(bytearray(zlib.decompress(payload)), dtype=torch.uint8).view(3, 20, 20) / 255

    def __getitem__(self, index):
        while True:
            try:
                return self.read(index), index % 5
            except zlib.error:
                log.exception("cannot read image %d", index)
                index = (index + 1) % self.size


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Images()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1, persistent_workers=True)
    model = DDP(nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
