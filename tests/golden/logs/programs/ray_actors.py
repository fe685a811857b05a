"""Ranks as Ray actors; the argument selects the fault of rank 1."""

import os
import signal
import sys

import ray
import torch
import torch.distributed as dist


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys_port}
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        print(f"rank {rank} of {world_size} joined", flush=True)

    def train(self, fault: str) -> float:
        total = torch.zeros(1)
        for step in range(30):
            rewards = {"helpful": 1.0, "harmless": 0.5}
            if (self.rank, step) == (1, 12):
                if fault == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault == "raises":
                    del rewards["harmless"]
            total = total + rewards["helpful"] + rewards["harmless"]
            dist.all_reduce(total)
            if self.rank == 0 and step % 5 == 0:
                print(f"step {step} / 30 reward {1 + step / 10:.3f}", flush=True)
        return total.item()


sys_port = os.environ["MASTER_PORT"]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
workers = [Worker.remote(rank, 3) for rank in range(3)]
print(
    f"finished: {len(ray.get([worker.train.remote(sys.argv[1]) for worker in workers]))} ranks",
    flush=True,
)
