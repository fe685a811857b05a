"""setup() sets MASTER_ADDR and MASTER_PORT, as for mp.spawn, although a launcher starts the script."""
# case: processes=3 ending=hang causes=master-unreachable,store-wait ranks=- framework=ddp

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"  # ALSO
    dist.init_process_group("gloo", rank=rank, world_size=world_size)  # GUILTY


def cleanup():
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def demo_basic(rank, world_size, epochs):
    setup(rank, world_size)
    print(f"Running basic DDP example on rank {rank}.")
    torch.manual_seed(rank)

    model = DDP(ToyModel())
    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(model.parameters(), lr=0.001)

    for epoch in range(epochs):
        optimizer.zero_grad()
        outputs = model(torch.randn(20, 10))
        labels = torch.randn(20, 5)
        loss_fn(outputs, labels).backward()
        optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done")

    cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    demo_basic(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args.epochs)
