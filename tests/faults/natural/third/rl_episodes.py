"""A rollout rank discards an episode without any step and sends nothing, but the learner receives one batch from every rollout rank.

In the style of an IMPALA-like actor-learner program with point-to-point transfers.
"""
# case: processes=4 ending=hang causes=p2p-without-partner,rank-missing-collective ranks=2 framework=plain

import argparse
import random

import torch
import torch.distributed as dist
from torch import nn

OBS, ACTIONS, MAX_STEPS = 5, 2, 40
LAYOUTS = (3, 2, 0, 1)  # smallest distance of the start from the goal


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 32), nn.ReLU())
        self.pi, self.v = nn.Linear(32, ACTIONS), nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.pi(h), self.v(h).squeeze(-1)


class Maze:
    """In some layouts an episode may begin on the goal, and then has no step."""

    def __init__(self, seed, nearest):
        self.random, self.nearest = random.Random(seed), nearest

    def reset(self):
        self.distance = self.random.randint(self.nearest, 12)
        return self.distance > 0

    def step(self, action):
        self.distance += -1 if action == 1 else self.random.choice((0, 1))
        return (1.0 if self.distance <= 0 else -0.05), self.distance <= 0

    def observe(self):
        return torch.tensor([self.distance / 12, *(self.random.random() for _ in range(OBS - 1))])


def play(env, agent):
    rows = []
    alive = env.reset()
    while alive and len(rows) < MAX_STEPS:
        obs = env.observe()
        with torch.no_grad():
            action = torch.distributions.Categorical(logits=agent(obs)[0]).sample().item()
        reward, done = env.step(action)
        rows.append([*obs.tolist(), action, reward])
        alive = not done
    return rows


def actor(agent, rank, args):
    env = Maze(seed=rank, nearest=LAYOUTS[rank % len(LAYOUTS)])
    for update in range(args.updates):
        for p in agent.parameters():
            dist.broadcast(p.data, src=0)  # ALSO
        rows = play(env, agent)
        if not rows:
            continue
        batch = torch.zeros(MAX_STEPS, OBS + 2)
        batch[: len(rows)] = torch.tensor(rows)
        dist.send(torch.tensor([len(rows)]), dst=0)  # GUILTY
        dist.send(batch, dst=0)


def learner(agent, args):
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=1e-3)
    for update in range(args.updates):
        for p in agent.parameters():
            dist.broadcast(p.data, src=0)
        losses, returns = [], []
        for source in range(1, dist.get_world_size()):
            length, batch = torch.zeros(1, dtype=torch.long), torch.empty(MAX_STEPS, OBS + 2)
            dist.recv(length, src=source)  # ALSO
            dist.recv(batch, src=source)
            batch = batch[: length.item()]
            logits, value = agent(batch[:, :OBS])
            reward = batch[:, OBS + 1].flip(0).cumsum(0).flip(0)
            logp = torch.distributions.Categorical(logits=logits).log_prob(batch[:, OBS])
            losses.append(-(logp * (reward - value.detach())).mean() + (reward - value).pow(2).mean())
            returns.append(reward[0].item())
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        if update % 5 == 0:
            print(f"update {update}: mean return {sum(returns) / len(returns):.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=80)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    agent = Agent()
    learner(agent, args) if rank == 0 else actor(agent, rank, args)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
