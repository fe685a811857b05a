"""Hyperparameters are broadcast within each replica group with src=0, but src is a global rank, so the second group has no such member.

Modelled on meta-pytorch/torchrec#4601 and OpenPipe/ART#919 ("Global rank 0 is not part of group").
"""
# case: processes=4 ending=crash causes=python-exception-on-one-rank,python-exception-all-ranks ranks=2,3 framework=ddp

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

POPULATION, GENERATIONS, STEPS = 2, 4, 10


class Member:
    """A member of the population, trained by the ranks of one group."""

    def __init__(self, index, group):
        self.index, self.group = index, group
        self.ranks = dist.get_process_group_ranks(group)
        torch.manual_seed(100 + index)
        self.model = DDP(nn.Sequential(nn.Linear(7, 24), nn.ReLU(), nn.Linear(24, 1)), process_group=group)
        self.lr = 10 ** -(2 + index)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.lr)

    def train(self, steps):
        for _ in range(steps):
            x = torch.randn(32, 7)
            loss = nn.functional.mse_loss(self.model(x).squeeze(-1), x.sum(-1))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.detach().reshape(1)

    def explore(self, generation):
        """The first rank of the group perturbs the learning rate and hands it to the rest of the group."""
        proposal = torch.zeros(1)
        if dist.get_rank(self.group) == 0:
            g = torch.Generator().manual_seed(generation)
            proposal[0] = self.lr * (0.8 if torch.rand(1, generator=g) < 0.5 else 1.25)
        dist.broadcast(proposal, src=0, group=self.group)  # GUILTY
        self.lr = proposal.item()
        for settings in self.optimizer.param_groups:
            settings["lr"] = self.lr


def make_groups(world):
    size = world // POPULATION
    return [dist.new_group(list(range(i * size, (i + 1) * size))) for i in range(POPULATION)]


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = make_groups(world)
    index = rank // (world // POPULATION)
    member = Member(index, groups[index])
    torch.manual_seed(rank)
    for generation in range(GENERATIONS):
        loss = member.train(STEPS)
        losses = [torch.zeros(1) for _ in range(world)]
        dist.all_gather(losses, loss)
        if rank == 0:
            print(f"generation {generation}: losses {[round(each.item(), 3) for each in losses]}", flush=True)
        member.explore(generation)  # ALSO
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
