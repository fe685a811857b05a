"""The world size is taken from a variable of the batch system that counts one task more than the launcher started, and initialization waits for the missing rank.

Modelled on torchrun under Slurm with SLURM_NTASKS in the environment.
"""
# case: processes=3 ending=hang causes=launch-arguments-differ,host-never-arrived,variables-contradict,variable-value-unusable,master-unreachable,store-wait,rank-missing-collective,variable-harmful ranks=- framework=torch.distributed

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

os.environ.setdefault("SLURM_NTASKS", "4")  # ALSO
os.environ.setdefault("SLURM_JOB_ID", "81233")


def init_distributed():
    """Return rank and world size, from Slurm if the job runs there."""
    if "SLURM_JOB_ID" in os.environ:
        world = int(os.environ["SLURM_NTASKS"])  # ALSO
        rank = int(os.environ.get("SLURM_PROCID", os.environ["RANK"]))
    else:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)  # GUILTY
    return rank, world


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x):
        return self.net(x)


def main():
    rank, world = init_distributed()  # ALSO
    torch.manual_seed(0)
    model = DDP(Regressor())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(100):
        x = torch.randn(32, 8, generator=g)
        loss = nn.functional.mse_loss(model(x), x.square().sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} of {world} ranks, loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
