"""A decoder ends the loader worker of one rank with os._exit, and the rank fails with "DataLoader worker exited unexpectedly".

Modelled on pytorch/pytorch#1355 and related reports (workers killed by a library or for their memory).
"""
# case: processes=2 ending=crash causes=dataloader-worker-died,python-exception-on-one-rank,peer-lost ranks=1 framework=ddp

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def decode(payload):
    """Decode like the C library of the camera does, which leaves on a bad header."""
    if payload[0] != 0xFF:
        os.write(2, b"camera: bad header\n")
        os._exit(3)  # ALSO
    return torch.frombuffer(bytearray(payload[1:]), dtype=torch.uint8).float() / 255


class Frames(Dataset):
    def __init__(self, size=600):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        body = bytes(torch.randint(0, 256, (3 * 16 * 16,), generator=g, dtype=torch.uint8).tolist())
        header = b"\xfe" if index == 301 else b"\xff"
        return decode(header + body).view(3, 16, 16), index % 7  # ALSO


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(16, 7)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = Frames()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=10, sampler=sampler, num_workers=1)
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):  # GUILTY
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
