"""Healthy: every rank runs generated programs in child processes, some of which fail, abort, or are killed at their time limit, as planned.

In the style of code-generation rewards (execution in a sandbox).
"""
# case: processes=2 ending=well causes=- ranks=- framework=ddp limit_s=120

import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PROGRAMS = [
    "print(sum(range(10)))",
    "while True: pass",
    "raise ValueError('no solution')",
    "import os; os.abort()",
    "import sys; sys.exit(3)",
    "import time; time.sleep(60)",
]


def reward(source, limit=2.0):
    """Return 1 for a right answer, 0 for a wrong one and -1 for a program that did not end well."""
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    try:
        out, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return -1.0
    if process.returncode != 0:
        return -1.0
    return float(out.strip() == "45")


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Linear(4, len(PROGRAMS))

    def forward(self, x):
        return torch.distributions.Categorical(logits=self.logits(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    policy = DDP(Policy())
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    torch.manual_seed(rank)
    for update in range(5):
        x = torch.randn(5, 4)
        actions = (torch.arange(5) + update + rank) % len(PROGRAMS)
        rewards = torch.tensor([reward(PROGRAMS[a]) for a in actions])
        loss = -(policy(x).log_prob(actions) * (rewards - rewards.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = rewards.sum()
        dist.all_reduce(total)
        if rank == 0:
            print(f"update {update} reward {total.item() / 10:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
