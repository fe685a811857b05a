import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn

from p2p import StageLink
from schedule import PipelineSchedule


def build_stage(args, rank, size):
    layers = [nn.TransformerEncoderLayer(args.dim, 8, 4 * args.dim, dropout=0.0, batch_first=True)
              for _ in range(args.layers // size)]
    if rank == 0:
        layers.insert(0, nn.Embedding(args.vocab, args.dim))
    if rank == size - 1:
        layers.append(nn.Linear(args.dim, args.vocab))
    return nn.Sequential(*layers)


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("vocab", 8192), ("dim", 1024), ("layers", 16), ("batch", 32), ("micro-batches", 8),
                        ("seq", 512), ("steps", 500), ("seed", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed + rank)
    stage = build_stage(args, rank, size).to(device)
    link = StageLink((args.batch // args.micro_batches, args.seq, args.dim), torch.float32, device)
    schedule = PipelineSchedule(stage, link, args.micro_batches)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=args.lr)
    data = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        ids = torch.randint(args.vocab, (args.batch, args.seq), generator=data).to(device)
        labels = ids.roll(1, dims=1)
        loss = schedule.run(ids, labels)
        optimizer.step()
        optimizer.zero_grad()
        if link.last and step % 10 == 0:
            print(f"step {step} loss {float(loss):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
