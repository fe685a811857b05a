"""Reentrant activation checkpointing of a block that is used twice makes DDP see its parameters ready twice.

Modelled on the many reports of "Expected to mark a variable ready only once" with use_reentrant=True and shared layers.
"""
# case: processes=2 ending=crash causes=ddp-param-ready-twice,python-exception-all-ranks ranks=- framework=ddp

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH, BLOCK = 50, 32, 24


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        return x + self.mlp(self.ln2(x))


class SharedGPT(nn.Module):
    """Two blocks, each applied twice, as in ALBERT."""

    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, idx, targets):
        x = self.emb(idx)
        for block in self.blocks:
            for _ in range(2):
                x = checkpoint(block, x, use_reentrant=True)  # ALSO
        return F.cross_entropy(self.head(self.ln(x)).flatten(0, 1), targets.flatten())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337)
    model = DDP(SharedGPT())  # ALSO
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    g = torch.Generator().manual_seed(rank)
    for it in range(60):
        idx = torch.randint(0, VOCAB, (8, BLOCK + 1), generator=g)
        loss = model(idx[:, :-1], idx[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # GUILTY
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if rank == 0 and it % 10 == 0:
            print(f"iter {it}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
