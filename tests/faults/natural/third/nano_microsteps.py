"""One rank has fewer micro-steps after short documents are dropped, never reaches the micro-step that synchronizes, and skips the gradient all-reduce.

In the style of nanoGPT: gradient accumulation, where the gradients are synchronized in the last micro-step only.
"""
# case: processes=3 ending=crash causes=rank-skips-collective,collective-mismatch,mismatched-shape ranks=1 framework=ddp

import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# config
gradient_accumulation_steps = 4
batch_size = 4
block_size = 32
vocab_size = 96
n_embd = 48
learning_rate = 1e-3
max_iters = 40
min_tokens = 8  # shorter documents teach nothing


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd)
        self.proj = nn.Linear(n_embd, n_embd)
        self.ln = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        q, k, v = self.qkv(self.ln(x)).split(n_embd, dim=2)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        logits = self.lm_head(x)
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1), ignore_index=-1)


class Documents:
    """Documents of a shard; most are long, some shards have a stretch of one-line documents."""

    def __init__(self, rank):
        self.g = torch.Generator().manual_seed(1337 + rank)
        self.one_liners = range(12 * gradient_accumulation_steps, 12 * gradient_accumulation_steps + 2) if rank == 1 else ()
        self.count = 0

    def next_batch(self):
        length = 4 if self.count in self.one_liners else block_size
        self.count += 1
        x = torch.randint(0, vocab_size, (batch_size, length + 1), generator=self.g)
        return x[:, :-1], x[:, 1:]


def get_lr(it):
    return learning_rate * 0.5 * (1.0 + math.cos(math.pi * it / max_iters))


dist.init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
master_process = ddp_rank == 0
torch.manual_seed(1337)
model = DDP(TinyGPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
documents = Documents(ddp_rank)

t0 = time.time()
for iter_num in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    micro_batches = [documents.next_batch() for _ in range(gradient_accumulation_steps)]
    micro_batches = [(x, y) for x, y in micro_batches if x.size(1) >= min_tokens]
    for micro_step, (X, Y) in enumerate(micro_batches):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        loss = model(X, Y) / gradient_accumulation_steps
        loss.backward()  # GUILTY
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    lossf = loss.detach() * gradient_accumulation_steps
    dist.all_reduce(lossf)  # ALSO
    if master_process and iter_num % 5 == 0:
        dt, t0 = time.time() - t0, time.time()
        print(f"iter {iter_num}: loss {lossf.item() / dist.get_world_size():.4f}, time {dt * 1000:.2f}ms", flush=True)

dist.destroy_process_group()
