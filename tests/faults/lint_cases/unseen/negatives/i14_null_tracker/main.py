import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from trackers import make_tracker


class Autoencoder(nn.Module):
    def __init__(self, dim=16, code=4):
        super().__init__()
        self.enc, self.dec = nn.Linear(dim, code), nn.Linear(code, dim)

    def forward(self, x):
        return self.dec(torch.tanh(self.enc(x)))


def stream(rank, device, n):
    g = torch.Generator().manual_seed(900 + rank)
    basis = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    for _ in range(n):
        yield (torch.randn(32, 4, generator=g) @ basis).to(device)


def world_mean(value):
    out = value.detach().clone()
    dist.all_reduce(out)
    return out / dist.get_world_size()


def fit(model, tracker, device, steps, log_every):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step, x in enumerate(stream(dist.get_rank(), device, steps), start=1):
        loss = (model(x) - x).pow(2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % log_every == 0:
            mean = world_mean(loss)
            if tracker.active:
                tracker.log(step, loss=mean.item())
            tracker.save_checkpoint(f"step{step}.pt", model.module.state_dict())
    tracker.barrier()
    summary = tracker.gather()
    if summary:
        print("final", summary)


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        with make_tracker(dist.get_rank(), os.environ.get("TRACK_DIR", "tracked")) as tracker:
            model = DDP(Autoencoder().to(device), device_ids=[device.index] if cuda else None)
            fit(model, tracker, device, steps=60, log_every=20)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
