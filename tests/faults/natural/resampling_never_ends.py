"""One rank resamples until its episode has a positive reward, which its environment never gives."""
# case: processes=4 ending=hang causes=computing-long,rank-missing-collective,stalled-outside-collectives ranks=3 framework=ddp

import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP


class GridWorld:
    """Walk on a line of cells to the goal at its right end."""

    def __init__(self, length, max_steps=12):
        self.length, self.max_steps = length, max_steps

    def rollout(self, policy):
        position, log_probs = 0, []
        for _ in range(self.max_steps):
            state = torch.tensor([position / self.length, 1.0])
            action = Categorical(logits=policy(state))
            move = action.sample()
            log_probs.append(action.log_prob(move))
            position = max(0, position + (1 if move.item() else -1))
            if position >= self.length:
                return log_probs, 1.0
        return log_probs, 0.0


def successful_episode(env, policy):
    """Sparse rewards: train only on episodes that reach the goal."""
    while True:
        log_probs, reward = env.rollout(policy)  # GUILTY
        if reward > 0:  # ALSO
            return log_probs, reward


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    random.seed(rank)
    policy = DDP(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    curriculum = [1, 1, 2, 2, 2, 3]
    for iteration in range(30):
        length = curriculum[min(iteration // 5, 5)]
        if rank == 3 and iteration > 10:
            length = 13  # the last rank explores the hard level
        log_probs, reward = successful_episode(GridWorld(length), policy.module)  # ALSO
        states = torch.rand(8, 2)
        loss = -reward * torch.stack(log_probs).mean() + 0.01 * policy(states).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and iteration % 5 == 0:
            print(f"iteration {iteration} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
