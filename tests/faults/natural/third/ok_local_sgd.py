"""Healthy: local SGD; the ranks train alone for 8 to 20 s per round, then average their weights, so collectives are rare.

In the style of a federated example without any framework.
"""
# case: processes=3 ending=well causes=- ranks=- framework=plain limit_s=90

import copy
import time

import torch
import torch.distributed as dist
from torch import nn

SITES = (8.0, 20.0, 14.0)  # seconds that a round takes at a site


def local_round(model, rank, seconds):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    start, steps = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        x = torch.randn(32, 16) + 0.1 * rank
        loss = nn.functional.mse_loss(model(x).squeeze(-1), x[:, 0] - x[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        time.sleep(0.05)
    return steps, loss.item()


@torch.no_grad()
def average(model, weight):
    total = torch.tensor(float(weight))
    dist.all_reduce(total)
    for p in model.parameters():
        p.mul_(weight / total.item())
        dist.all_reduce(p)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    torch.manual_seed(rank)
    before = copy.deepcopy(model.state_dict())
    for turn in range(2):
        steps, loss = local_round(model, rank, SITES[rank % len(SITES)])
        average(model, steps)
        if rank == 0:
            moved = sum((p - before[n]).norm().item() for n, p in model.state_dict().items())
            print(f"round {turn}: {steps} local steps, loss {loss:.4f}, moved by {moved:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
