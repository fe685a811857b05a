import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from manager import CheckpointManager


def build_model(vocab=4096, dim=256):
    return nn.Sequential(nn.Embedding(vocab, dim), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, vocab))


def next_batch(generator, device, batch=8, length=128):
    ids = torch.randint(0, 4096, (batch, length + 1), generator=generator)
    return ids[:, :-1].to(device), ids[:, 1:].to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt_dir", default="checkpoints")
    parser.add_argument("--max_steps", type=int, default=2000)
    parser.add_argument("--interval", type=int, default=200)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("cuda:nccl,cpu:gloo")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    manager = CheckpointManager(args.ckpt_dir)
    state = manager.load(model, optimizer, device)
    ddp = DistributedDataParallel(model, device_ids=[local_rank])
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + state["step"])
    for step in range(state["step"], args.max_steps):
        ids, targets = next_batch(generator, device)
        loss = nn.functional.cross_entropy(ddp(ids).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["tokens_seen"] += ids.numel() * dist.get_world_size()
        if (step + 1) % args.interval == 0:
            manager.save(step + 1, model, optimizer, state["tokens_seen"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
