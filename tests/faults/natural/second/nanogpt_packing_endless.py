"""The document packer of rank 2 searches forever: every document of its shard is longer than the block and is passed over.

Modelled on karpathy/nanochat#371 (loader never returns the next batch) and instructlab/training#170 (endless batch-size loop).
"""
# case: processes=4 ending=hang causes=computing-long,rank-missing-collective,stalled-outside-collectives ranks=2 framework=nanogpt

import os
import time
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
block_size = 64
batch_size = 4
gradient_accumulation_steps = 2
n_embd = 48
n_head = 4
vocab_size = 256
max_iters = 60
log_interval = 10
learning_rate = 3e-4
# -----------------------------------------------------------------------------


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.block = nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout=0.0, batch_first=True, norm_first=True)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        logits = self.lm_head(self.block(x, src_mask=mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def load_shard(rank):
    """The crawl is sorted by source: shard 2 holds the books."""
    rng = np.random.default_rng(rank)
    low, high = ((8, 60), (8, 60), (400, 900), (8, 60))[rank % 4]
    return [rng.integers(1, vocab_size, size=n) for n in rng.integers(low, high, size=200)]


def packed_rows(documents):
    """Rows of block_size + 1 tokens, each made of whole documents and padded."""
    i = 0
    while True:
        row = []
        while len(row) < block_size // 2:
            doc = documents[i % len(documents)]
            i += 1
            if len(row) + len(doc) > block_size + 1:  # GUILTY
                continue
            row.extend(doc)
        yield row + [-1] * (block_size + 1 - len(row))


init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
master_process = ddp_rank == 0
torch.manual_seed(1337)
rows = packed_rows(load_shard(ddp_rank))


def get_batch():
    data = torch.tensor(np.array([next(rows) for _ in range(batch_size)]))  # ALSO
    return data[:, :-1].clamp(min=0), data[:, 1:].contiguous()


model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
if master_process:
    print(f"tokens per iteration: {4 * gradient_accumulation_steps * batch_size * block_size:,}", flush=True)

t0 = time.time()
X, Y = get_batch()  # ALSO
for iter_num in range(max_iters):
    for micro_step in range(gradient_accumulation_steps):
        last = micro_step == gradient_accumulation_steps - 1
        with nullcontext() if last else model.no_sync():
            loss = model(X, Y) / gradient_accumulation_steps
            X, Y = get_batch()
            loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {time.time() - t0:.1f}s", flush=True)
destroy_process_group()
