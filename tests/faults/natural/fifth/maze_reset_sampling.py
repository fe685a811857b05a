"""One rank draws a start cell by rejection in a maze that has no free cell left, and never leaves the loop.

Modelled on environment resets of reinforcement learning recipes (rejection sampling without a limit).
"""
# case: processes=3 ending=hang causes=stalled-outside-collectives,computing-long,straggler,rank-missing-collective ranks=1 framework=ddp

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SIZE = 9


class Maze:
    """A grid whose walls grow with the level of the curriculum."""

    def __init__(self, seed, growth):
        self.rng = np.random.default_rng(seed)
        self.growth = growth

    def reset(self, level):
        density = min(self.growth * level, 1.0)
        self.walls = self.rng.random((SIZE, SIZE)) < density
        self.agent = self.free_cell()
        return self.observation()

    def free_cell(self):
        while True:
            cell = tuple(self.rng.integers(0, SIZE, 2))  # GUILTY
            if not self.walls[cell]:  # ALSO
                return cell  # ALSO

    def observation(self):
        view = self.walls.astype(np.float32)
        view[self.agent] = -1.0
        return view

    def step(self, action):
        row, col = self.agent
        row, col = [(row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)][action]
        if 0 <= row < SIZE and 0 <= col < SIZE and not self.walls[row, col]:
            self.agent = (row, col)
            return self.observation(), 0.1
        return self.observation(), -0.2


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(SIZE * SIZE, 64), nn.Tanh(), nn.Linear(64, 4))

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.net(x))


def episode(env, policy, level, length=20):
    view, views, actions, rewards = env.reset(level), [], [], []  # ALSO
    for _ in range(length):
        with torch.no_grad():
            action = policy(torch.from_numpy(view)[None]).sample()
        views.append(torch.from_numpy(view))
        actions.append(action)
        view, reward = env.step(int(action))
        rewards.append(reward)
    returns = torch.tensor(rewards).flip(0).cumsum(0).flip(0)
    return torch.stack(views), torch.cat(actions), returns


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = DDP(Policy())
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    env = Maze(seed=rank, growth=[0.02, 0.04, 0.02][rank])
    torch.manual_seed(rank)
    for update in range(40):
        views, actions, returns = episode(env, policy.module, level=update)  # ALSO
        advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
        loss = -(policy(views).log_prob(actions) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"update {update} return {returns[0].item():.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
