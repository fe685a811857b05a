import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


class Ring:
    """Passes blocks to the next rank of the context-parallel group; tp ranks lie in between."""

    def __init__(self, group):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.next = dist.get_global_rank(group, (self.rank + 1) % self.size)
        self.previous = dist.get_global_rank(group, (self.rank - 1) % self.size)

    def shift(self, *tensors):
        received = [torch.empty_like(t) for t in tensors]
        ops = []
        for tensor, buffer in zip(tensors, received):
            ops.append(dist.P2POp(dist.isend, tensor.contiguous(), self.next, group=self.group))
            ops.append(dist.P2POp(dist.irecv, buffer, self.previous, group=self.group))
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received


def ring_attention(q, k, v, ring):
    """Causal attention over a sequence that is split in the order of the ranks."""
    out = torch.zeros_like(q)
    weight = q.new_zeros(*q.shape[:-1], 1)
    highest = torch.full_like(weight, float("-inf"))
    length = q.shape[-2]
    mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
    for hop in range(ring.size):
        source = (ring.rank - hop) % ring.size
        if source <= ring.rank:
            scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            if source == ring.rank:
                scores = scores.masked_fill(~mask, float("-inf"))
            peak = torch.maximum(highest, scores.amax(dim=-1, keepdim=True))
            scale, probs = (highest - peak).exp(), (scores - peak).exp()
            out, weight, highest = out * scale + probs @ v, weight * scale + probs.sum(-1, keepdim=True), peak
        if hop < ring.size - 1:
            k, v = ring.shift(k, v)
    return out / weight


def gather_lengths(lengths, group):
    """The ranks keep different numbers of documents: pad before the gather, cut after it."""
    size = torch.tensor([len(lengths)], device=lengths.device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, size, group=group)
    padded = lengths.new_zeros(max(int(s) for s in sizes))
    padded[: len(lengths)] = lengths
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[: int(s)] for part, s in zip(parts, sizes)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cp", type=int, default=4)
    parser.add_argument("--length", type=int, default=16_384)
    parser.add_argument("--layers", type=int, default=4)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    tp = dist.get_world_size() // args.cp
    mesh = init_device_mesh("cuda", (args.cp, tp), mesh_dim_names=("cp", "tp"))
    ring, tp_rank = Ring(mesh.get_group("cp")), mesh.get_local_rank("tp")
    torch.manual_seed(tp_rank)
    qkv = nn.ModuleList(nn.Linear(512, 3 * 512) for _ in range(args.layers)).cuda()
    chunk = args.length // args.cp
    generator = torch.Generator("cuda").manual_seed(100 + ring.rank)
    x = torch.randn(1, chunk, 512, generator=generator, device="cuda")
    with torch.no_grad():
        for layer in qkv:
            q, k, v = (part.unflatten(-1, (8, 64)).transpose(1, 2) for part in layer(x).chunk(3, dim=-1))
            x = x + ring_attention(q, k, v, ring).transpose(1, 2).flatten(2)
    ends = torch.nonzero(x[0].norm(dim=-1) > x[0].norm(dim=-1).mean())[:, 0] + ring.rank * chunk
    marks = gather_lengths(ends, ring.group)
    if dist.get_rank() == 0:
        print(f"{len(marks)} marked positions of {args.length}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
