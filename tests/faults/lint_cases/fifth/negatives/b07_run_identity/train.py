import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from identity import agree_on_run
from tracking import make_tracker


def global_mean(loss):
    value = loss.detach().clone()
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="runs")
    parser.add_argument("--name", default="mlp")
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    identity = agree_on_run(args.root, args.name, vars(args))
    tracker = make_tracker(identity)

    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(int(identity.token, 16) + dist.get_rank())
    for step in range(1, args.steps + 1):
        x = torch.randn(128, 64, device=device)
        loss = (model(x) - x.cumsum(dim=1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            tracker.log({"loss": global_mean(loss)}, step)
        if step % 1000 == 0:
            folder = Path(identity.directory)
            rng = {"torch": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state()}
            torch.save(rng, folder / f"rng_{dist.get_rank():04d}.pt")
            if dist.get_rank() == 0:
                torch.save(net.state_dict(), folder / f"model_{step}.pt")
    tracker.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
