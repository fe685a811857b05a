"""The script's configuration says world_size = 5, but 4 ranks were started: all wait in init_process_group."""
# case: processes=4 ending=hang causes=store-wait,launch-arguments-differ ranks=- framework=ddp

import math
import os

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
# I/O and system, as for the large machine
backend = "gloo"
world_size = 5
# data and model
batch_size = 8
block_size = 32
vocab_size = 50
n_embd = 32
# adamw
learning_rate = 6e-4
max_iters = 50
warmup_iters = 5
min_lr = 6e-5
# -----------------------------------------------------------------------------


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1))
        logits = self.lm_head(self.wte(idx) + self.wpe(pos))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    coeff = 0.5 * (1.0 + math.cos(math.pi * (it - warmup_iters) / (max_iters - warmup_iters)))
    return min_lr + coeff * (learning_rate - min_lr)


def get_batch():
    data = torch.randint(0, vocab_size, (batch_size, block_size + 1))
    return data[:, :-1].contiguous(), data[:, 1:].contiguous()


ddp_rank = int(os.environ["RANK"])
init_process_group(backend=backend, rank=ddp_rank, world_size=world_size)  # GUILTY
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)
model = DDP(TinyGPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))

for iter_num in range(max_iters):
    for param_group in optimizer.param_groups:
        param_group["lr"] = get_lr(iter_num)
    X, Y = get_batch()
    loss = model(X, Y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if master_process and iter_num % 10 == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}")

destroy_process_group()
