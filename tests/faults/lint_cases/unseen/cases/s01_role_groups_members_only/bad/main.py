"""Toy actor/critic tuner: all ranks hold the policy, some also hold the critic."""
import logging
import os

import torch
import torch.distributed as dist
from torch import nn

from topology import Communicators, Layout

ROLES = {"policy": (0, 1), "critic": (-1,)}


def average_(params, group, members):
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad, group=group)
        p.grad.div_(members)


class Worker:
    def __init__(self, comms: Communicators, width: int = 8):
        torch.manual_seed(7)
        self.comms = comms
        self.policy = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.critic = nn.Linear(width, 1)
        self.opt_policy = torch.optim.SGD(self.policy.parameters(), lr=0.05)
        self.opt_critic = torch.optim.SGD(self.critic.parameters(), lr=0.05)
        self.sizes = {role.name: len(role.ranks) for role in comms.layout}

    def improve_policy(self, obs):
        logp = self.policy(obs).log_softmax(-1)
        loss = -(logp[:, 0] * obs.sum(-1).sign()).mean()
        self.opt_policy.zero_grad()
        loss.backward()
        average_(self.policy.parameters(), self.comms["policy"], self.sizes["policy"])
        self.opt_policy.step()
        return loss.detach()

    def improve_critic(self, obs):
        loss = (self.critic(obs).squeeze(-1) - obs.sum(-1)).pow(2).mean()
        self.opt_critic.zero_grad()
        loss.backward()
        average_(self.critic.parameters(), self.comms["critic"], self.sizes["critic"])
        self.opt_critic.step()

    def publish_critic(self):
        """Everyone gets a copy of the value head of the critics' leader."""
        leader = next(r.leader for r in self.comms.layout if r.name == "critic")
        for p in self.critic.parameters():
            dist.broadcast(p.data, src=leader)


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    layout = Layout.parse(ROLES, dist.get_world_size())
    comms = Communicators(layout).connect()
    worker = Worker(comms)

    gen = torch.Generator().manual_seed(100 + dist.get_rank())
    for it in range(int(os.environ.get("ITERS", 4))):
        obs = torch.randn(16, 8, generator=gen)
        loss = worker.improve_policy(obs)
        if "critic" in comms:
            worker.improve_critic(obs)
        worker.publish_critic()
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            logging.info("iter %d loss %.4f", it, loss.item() / dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
