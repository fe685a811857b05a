"""Healthy: rank 0 receives updates from whichever worker is ready; the workers need between 0.1 s and 9 s for theirs.

In the style of asynchronous parameter servers with recv without a source.
"""
# case: processes=4 ending=well causes=- ranks=- framework=torch.distributed limit_s=120

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS = {1: 40, 2: 12, 3: 3}
PAUSE = {1: 0.1, 2: 0.8, 3: 9.0}


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))


def server():
    model = build()
    weights = parameters_to_vector(model.parameters()).detach()
    update = torch.empty_like(weights)
    for count in range(sum(ROUNDS.values())):
        worker = dist.recv(update)
        weights -= 0.05 * update
        dist.send(weights, dst=worker)
        if count % 10 == 0:
            print(f"update {count} norm {update.norm():.3f}", flush=True)


def worker(rank):
    model = build()
    g = torch.Generator().manual_seed(rank)
    weights = parameters_to_vector(model.parameters()).detach()
    for _ in range(ROUNDS[rank]):
        time.sleep(PAUSE[rank])
        x = torch.randn(32, 6, generator=g)
        model.zero_grad()
        nn.functional.mse_loss(model(x), x.prod(1, keepdim=True)).backward()
        dist.send(torch.cat([p.grad.flatten() for p in model.parameters()]), dst=0)
        dist.recv(weights, src=0)
        vector_to_parameters(weights, model.parameters())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        server()
    else:
        worker(rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
