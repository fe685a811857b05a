import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from ring import RingComm, ring_attention


class Layer(nn.Module):
    def __init__(self, dim=512, heads=8):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, comm):
        b, n, d = x.shape
        qkv = self.qkv(self.norm(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(ring_attention(q, k, v, comm).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(x)


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int, default=131072)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    layers = nn.ModuleList([Layer() for _ in range(args.layers)]).cuda().eval()
    embed = nn.Embedding(32000, 512).cuda()
    comm = RingComm()
    ids = torch.randint(0, 32000, (1, args.length), generator=torch.Generator().manual_seed(1))
    x = embed(ids.chunk(comm.world_size, dim=1)[comm.rank].cuda())
    for layer in layers:
        x = layer(x, comm)
    pooled = x.sum(1)
    dist.all_reduce(pooled)
    if comm.rank == 0:
        print("mean state", (pooled / args.length).mean().item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
