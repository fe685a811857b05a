"""Rank 0 posts its metrics to a tracking server that accepts connections and never answers; no timeout is set."""
# case: processes=3 ending=hang causes=rank-missing-collective,stalled-outside-collectives ranks=0 framework=ddp

import socket

import requests
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def overloaded_server():
    """Listen like a server whose workers are all busy: the kernel accepts, no process answers."""
    return socket.create_server(("127.0.0.1", 0), backlog=64)


class MetricsClient:
    def __init__(self, url, run_name):
        self.url, self.run_name = url, run_name
        self.session = requests.Session()
        self.session.trust_env = False

    def log(self, metrics, step):
        payload = {"run": self.run_name, "step": step, "metrics": metrics}
        response = self.session.post(f"{self.url}/api/log", json=payload)  # GUILTY
        response.raise_for_status()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        server = overloaded_server()
        client = MetricsClient(f"http://127.0.0.1:{server.getsockname()[1]}", "baseline")

    model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(1, 201):
        x = torch.randn(32, 16)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
            client.log({"loss": loss.item()}, step)  # ALSO

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
