"""Rank 0 opens a second store on a fixed port that an earlier job, still running, has open."""
# case: processes=3 ending=crash causes=port-in-use ranks=0 framework=ddp

import os
import socket
import subprocess
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STORE_PORT = 29741
EARLIER_JOB = "import socket, time; s = socket.create_server(('', %d)); time.sleep(60)"


def start_earlier_job():
    """Start a process that stands for the job of yesterday, which nobody has ended."""
    job = subprocess.Popen([sys.executable, "-c", EARLIER_JOB % STORE_PORT])
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", STORE_PORT)) == 0:
                break
        time.sleep(0.1)
    return job


class Progress:
    """Counters of all ranks, in a store of our own so that they outlive the process group."""

    def __init__(self, rank, world_size):
        self.rank = rank
        self.store = dist.TCPStore(  # GUILTY
            "127.0.0.1",
            STORE_PORT,  # ALSO
            world_size,  # ALSO
            is_master=rank == 0,  # ALSO
            timeout=timedelta(seconds=120),  # ALSO
        )

    def add(self, samples):
        return self.store.add("samples", samples)


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    if rank == 0:
        earlier = start_earlier_job()
    dist.barrier()
    progress = Progress(rank, world_size)

    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        loss = model(torch.randn(16, 32)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = progress.add(16)
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f} samples {total}")
    dist.destroy_process_group()
    if rank == 0:
        earlier.kill()


if __name__ == "__main__":
    main()
