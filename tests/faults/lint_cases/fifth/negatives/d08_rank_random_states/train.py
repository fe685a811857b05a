import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import checkpoint


def build(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(32, 1024), nn.SiLU(), nn.Dropout(0.1),
        nn.Linear(1024, 1024), nn.SiLU(),
        nn.Linear(1024, 8),
    ).cuda()
    for index in (0, 3, 5):
        fully_shard(model[index])
    fully_shard(model)
    return model


class Environment:
    """A small vectorised control task; every rank simulates its own copies."""

    def __init__(self, copies):
        self.state = torch.randn(copies, 32, device="cuda")

    def step(self, action):
        push = torch.zeros_like(self.state)
        push[:, :8] = torch.nn.functional.one_hot(action, 8).float()
        self.state = 0.95 * self.state + 0.1 * push + 0.02 * torch.randn_like(self.state)
        reward = -self.state.pow(2).mean(dim=1)
        return self.state, reward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="ckpt")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--save-interval", type=int, default=250)
    parser.add_argument("--seed", type=int, default=99)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank = dist.get_rank()
    model = build(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(args.seed + 1 + rank)
    start = checkpoint.load(model, optimizer, args.root)
    env = Environment(256)
    for iteration in range(start, args.iterations):
        log_probs, rewards = [], []
        for _ in range(16):
            dist_ = torch.distributions.Categorical(logits=model(env.state))
            action = dist_.sample()
            log_probs.append(dist_.log_prob(action))
            rewards.append(env.step(action)[1])
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
        loss = -(torch.stack(log_probs) * (returns - returns.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = torch.stack(rewards).mean()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"iteration {iteration} reward {mean.item():.4f}")
        if (iteration + 1) % args.save_interval == 0:
            checkpoint.save(model, optimizer, args.root, iteration + 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
