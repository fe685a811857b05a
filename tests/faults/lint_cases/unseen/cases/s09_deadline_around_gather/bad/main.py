"""Reinforcement learning with verifiable rewards on a toy arithmetic task."""
import logging
import os
import random
import time
from dataclasses import dataclass
from typing import List

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical

from limits import deadline

log = logging.getLogger("rlvr")


@dataclass
class Problem:
    a: int
    b: int

    @property
    def answer(self):
        return (self.a + self.b) % 10

    def features(self):
        x = torch.zeros(20)
        x[self.a], x[10 + self.b] = 1.0, 1.0
        return x


class Verifier:
    """Symbolic check of an answer; degenerate answers are slow to simplify."""

    slow_every = int(os.environ.get("SLOW_EVERY", 11))

    def __init__(self, rng):
        self.rng = rng
        self.seen = 0

    def check(self, problem: Problem, answer: int) -> float:
        self.seen += 1
        if dist.get_rank() == 1 and self.seen % self.slow_every == 0:
            time.sleep(2.0)
        return float(answer == problem.answer)


class Grader:
    """Turns answers into advantages that are normalised over all workers."""

    def __init__(self, verifier: Verifier, limit_s: float):
        self.verifier = verifier
        self.limit_s = limit_s
        self.timeouts = 0

    def _zero(self, problems, answers):
        self.timeouts += 1
        return torch.zeros(len(problems))

    def check_all(self, problems, answers):
        return torch.tensor([self.verifier.check(p, a) for p, a in zip(problems, answers)])

    def moments(self, rewards):
        acc = torch.stack([rewards.sum(), rewards.pow(2).sum(), torch.tensor(float(len(rewards)))])
        dist.all_reduce(acc)  # RELATED: hidden-collective
        mean = acc[0] / acc[2]
        return mean, (acc[1] / acc[2] - mean**2).clamp(min=0).sqrt()

    @deadline.around("limit_s", fallback=_zero)
    def advantages(self, problems: List[Problem], answers: List[int]):
        rewards = self.check_all(problems, answers)
        mean, std = self.moments(rewards)  # EXPECT: signal-alarm-collective
        return (rewards - mean) / (std + 1e-4)


class Learner:
    def __init__(self, grader, rng, group=4):
        self.grader, self.rng, self.group = grader, rng, group
        self.policy = nn.Linear(20, 10)
        for p in self.policy.parameters():
            dist.broadcast(p.data, src=0)
        self.opt = torch.optim.SGD(self.policy.parameters(), lr=0.5)

    def rollout(self):
        problems = [Problem(self.rng.randrange(10), self.rng.randrange(10)) for _ in range(self.group)]
        pi = Categorical(logits=self.policy(torch.stack([p.features() for p in problems])))
        actions = pi.sample()
        return problems, actions, pi.log_prob(actions)

    def step(self):
        problems, actions, logp = self.rollout()
        adv = self.grader.advantages(problems, actions.tolist())
        loss = -(adv * logp).mean()
        self.opt.zero_grad()
        loss.backward()
        for p in self.policy.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        self.opt.step()


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    rng = random.Random(rank)
    learner = Learner(Grader(Verifier(rng), limit_s=1.0), rng)
    for it in range(8):
        learner.step()
        if rank == 0:
            log.info("iteration %d done", it)
    late = torch.tensor([learner.grader.timeouts])
    dist.all_reduce(late)
    if rank == 0:
        log.info("verifier timed out %d times", late.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
