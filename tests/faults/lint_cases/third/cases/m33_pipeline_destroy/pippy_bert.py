import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline


class BertLayer(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.mlp(x)


class Bert(nn.Module):
    def __init__(self, vocab=30522, dim=256, layers=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleDict({str(i): BertLayer(dim) for i in range(layers)})
        self.cls = nn.Linear(dim, vocab)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers.values():
            x = layer(x)
        return self.cls(x)


def split_spec(layers, world_size):
    per_stage = layers // world_size
    return {f"layers.{i * per_stage}": SplitPoint.BEGINNING for i in range(1, world_size)}


def run(args):
    torch.manual_seed(0)
    bert = Bert(layers=args.layers).to(args.device).eval()
    example = torch.randint(0, 30522, (args.batch_size // args.chunks, 128), device=args.device)
    pipe = pipeline(bert, mb_args=(example,), split_spec=split_spec(args.layers, args.world_size))
    assert pipe.num_stages == args.world_size
    stage = pipe.build_stage(args.rank, device=args.device)
    schedule = ScheduleGPipe(stage, args.chunks)
    ids = torch.randint(0, 30522, (args.batch_size, 128), device=args.device)

    with torch.no_grad():
        if args.rank == 0:
            schedule.step(ids)
        else:
            out = schedule.step()
            if args.rank == args.world_size - 1:
                print("output", tuple(out.shape))

    dist.destroy_process_group()
    print(f"Rank {args.rank} completes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--world_size", type=int, default=int(os.getenv("WORLD_SIZE", 4)))
    parser.add_argument("--rank", type=int, default=int(os.getenv("RANK", -1)))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--chunks", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()
    local_rank = int(os.getenv("LOCAL_RANK", 0))
    torch.cuda.set_device(local_rank)
    args.device = torch.device("cuda", local_rank)
    dist.init_process_group(backend="nccl", rank=args.rank, world_size=args.world_size)
    run(args)
