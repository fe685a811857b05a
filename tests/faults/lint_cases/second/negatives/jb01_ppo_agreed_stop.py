"""PPO on a token policy; updates of one rollout end once the policy has moved too far."""
import math
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Limits:
    clip: float = 0.2
    target_kl: float = 0.015
    hard_factor: float = 2.0

    @property
    def kl_limit(self):
        return self.target_kl * self.hard_factor


class Policy(nn.Module):
    def __init__(self, vocab=19, dim=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.LSTM(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens))[0])


class Meter:
    """A sum and a count, read as the mean over every rank."""

    def __init__(self, device):
        self.device = device
        self.total, self.count = 0.0, 0

    def add(self, values):
        self.total += float(values.sum())
        self.count += values.numel()
        return self

    def mean(self):
        pair = torch.tensor([self.total, float(self.count)], dtype=torch.float64, device=self.device)
        dist.all_reduce(pair)
        return (pair[0] / pair[1]).item()


class Guard:
    def __init__(self, limits, device):
        self.limits, self.device = limits, device

    def tripped(self, old, new):
        gap = (new - old).detach()
        kl = Meter(self.device).add(gap.exp() - 1 - gap).mean()
        return not math.isfinite(kl) or kl > self.limits.kl_limit


def logprobs(model, tokens):
    return F.log_softmax(model(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


@torch.no_grad()
def rollout(policy, count, length, device):
    tokens = torch.zeros(count, 1, dtype=torch.long, device=device)
    for _ in range(length):
        tokens = torch.cat([tokens, torch.multinomial(policy(tokens)[:, -1].softmax(-1), 1)], 1)
    reward = (tokens[:, 1:] % 3 == 0).float().mean(1)
    return tokens, logprobs(policy, tokens), reward


class Learner:
    def __init__(self, device):
        self.device, self.limits = device, Limits()
        self.model = DDP(Policy().to(device))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-3)
        self.guard = Guard(self.limits, device)

    def loss(self, new, old, advantage):
        ratio = (new - old).exp()
        low, high = 1 - self.limits.clip, 1 + self.limits.clip
        return -torch.min(ratio * advantage, ratio.clamp(low, high) * advantage).mean()

    def update(self, tokens, old, advantage, epochs=4, size=8):
        done = 0
        for rows in (r for _ in range(epochs) for r in torch.randperm(len(tokens)).split(size)):
            new = logprobs(self.model, tokens[rows])
            if self.guard.tripped(old[rows], new):
                break
            self.optimizer.zero_grad()
            self.loss(new, old[rows], advantage[rows, None]).backward()
            self.optimizer.step()
            done += 1
        return done


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(50 + dist.get_rank())
    learner = Learner(device)
    for it in range(10):
        tokens, old, reward = rollout(learner.model.module, 32, 10, device)
        steps = learner.update(tokens, old, (reward - reward.mean()) / (reward.std() + 1e-6))
        mean = Meter(device).add(reward).mean()
        if dist.get_rank() == 0:
            print(f"iteration {it}: {steps} updates, reward {mean:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
