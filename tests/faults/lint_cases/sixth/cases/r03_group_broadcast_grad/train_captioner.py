import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from comm import ReplicaLayout, average_gradients, share_context


class TextEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim)
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, tokens):
        return self.proj(self.embed(tokens))


class Trunk(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.inp = nn.Linear(patch, dim)
        self.mix = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, patch)

    def forward(self, patches, context):
        hidden = F.gelu(self.inp(patches))
        context = context.unsqueeze(1).expand_as(hidden)
        return self.out(F.gelu(self.mix(torch.cat([hidden, context], dim=-1))))


class Trainer:
    def __init__(self, args, device):
        self.layout = ReplicaLayout(args.replica_size)
        self.device = device
        torch.manual_seed(args.seed)
        self.trunk = Trunk(args.dim, args.patch).to(device)
        self.encoder = TextEncoder(args.vocab, args.dim).to(device)
        self.slot = torch.zeros(args.batch, args.dim, device=device, requires_grad=True)
        self.params = list(self.trunk.parameters()) + list(self.encoder.parameters())
        self.optim = torch.optim.AdamW(self.params, lr=args.lr)

    def step(self, tokens, patches):
        source = self.encoder(tokens) if self.layout.is_leader else self.slot
        context = share_context(source, self.layout.leader, self.layout.group)
        loss = F.mse_loss(self.trunk(patches, context), patches)
        self.optim.zero_grad()
        loss.backward()
        average_gradients(self.trunk.parameters(), None, dist.get_world_size())
        if self.layout.is_leader:
            average_gradients(self.encoder.parameters(), self.layout.leader_group, dist.get_world_size())
        self.optim.step()
        return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--replica-size", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--patch", type=int, default=192)
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    trainer = Trainer(args, device)
    data = torch.Generator(device=device).manual_seed(1000 + dist.get_rank())
    for step in range(args.steps):
        tokens = torch.randint(0, args.vocab, (args.batch, 16), device=device, generator=data)
        patches = torch.randn(args.batch, 64, args.patch, device=device, generator=data)
        loss = trainer.step(tokens, patches)
        if step % 100 == 0 and dist.get_rank() == 0:
            print(step, loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
