import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


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


def train_step(ddp_model, optimizer, rank):
    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10, device=rank))
    labels = torch.randn(20, 5, device=rank)
    nn.functional.mse_loss(outputs, labels).backward()
    optimizer.step()


class LocalCheckpoint:
    """A checkpoint in a temporary folder that the ranks of one node share."""

    def __init__(self, path, rank):
        self.path = path
        self.rank = rank

    def write(self, ddp_model, optimizer, step):
        if self.rank == 0:
            state = {"model": ddp_model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, self.path)
        # the other ranks must not read before rank 0 has written
        dist.barrier()

    def restore(self, ddp_model, optimizer):
        state = torch.load(self.path, map_location=f"cuda:{self.rank}")
        ddp_model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return state["step"]

    def discard(self):
        if self.rank == 0:
            os.remove(self.path)


def demo_checkpoint(rank, world_size, folder):
    print(f"Running DDP checkpoint example on rank {rank}.")
    setup(rank, world_size)
    torch.manual_seed(0)
    model = ToyModel().to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001, momentum=0.9)
    checkpoint = LocalCheckpoint(os.path.join(folder, "model.checkpoint"), rank)
    for step in range(10):
        train_step(ddp_model, optimizer, rank)
    checkpoint.write(ddp_model, optimizer, 10)

    restored = DDP(ToyModel().to(rank), device_ids=[rank])
    restored_optimizer = optim.SGD(restored.parameters(), lr=0.001, momentum=0.9)
    step = checkpoint.restore(restored, restored_optimizer)
    checkpoint.discard()
    for _ in range(10):
        train_step(restored, restored_optimizer, rank)
        step += 1
    if rank == 0:
        print(f"finished after {step} steps")
    cleanup()


def run_demo(demo_fn, world_size):
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(demo_fn, args=(world_size, folder), nprocs=world_size, join=True)


if __name__ == "__main__":
    n_gpus = torch.cuda.device_count()
    assert n_gpus >= 2, f"Requires at least 2 GPUs to run, but got {n_gpus}"
    run_demo(demo_checkpoint, n_gpus)
