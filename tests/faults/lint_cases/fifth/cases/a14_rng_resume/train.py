import argparse
import logging
import os

import torch
import torch.distributed as dist

from checkpoint import Checkpointer
from model import build


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="checkpoints/masked")
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--save-interval", type=int, default=500)
    parser.add_argument("--mask", type=float, default=0.15)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    logging.basicConfig(level=logging.INFO)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    torch.manual_seed(5000 + dist.get_rank())
    checkpointer = Checkpointer(args.root)
    start = checkpointer.load(model, optimizer)

    for iteration in range(start + 1, args.iterations + 1):
        tokens = torch.randn(8, 128, 512, device="cuda")
        keep = torch.rand(8, 128, 1, device="cuda") > args.mask
        loss = ((model(tokens * keep) - tokens) * ~keep).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if iteration % 50 == 0:
            shown = loss.detach()
            dist.all_reduce(shown, op=dist.ReduceOp.AVG)
            if dist.get_rank() == 0:
                logging.info("iteration %d loss %.4f", iteration, shown.item())
        if iteration % args.save_interval == 0:
            checkpointer.save(iteration, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
