"""Healthy: a nanoGPT-like script that prints nothing at all for its whole run, with few and slow iterations.

In the style of nanoGPT's train.py with logging switched off.
"""
# case: processes=4 ending=well causes=- ranks=- framework=nanogpt limit_s=90

import os
import time

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
gradient_accumulation_steps = 8
batch_size = 8
block_size = 96
vocab_size = 256
n_embd, n_head, n_layer = 96, 4, 3
seconds = 20
# -----------------------------------------------------------------------------


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(
            nn.TransformerEncoderLayer(n_embd, n_head, 4 * n_embd, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(n_layer)
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        for block in self.h:
            x = block(x, src_mask=mask, is_causal=True)
        return F.cross_entropy(self.lm_head(x).flatten(0, 1), targets.flatten())


init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1337)
model = DDP(GPT())
torch.manual_seed(rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)

start = time.time()
running = torch.ones(1)
while running.item():
    for micro_step in range(gradient_accumulation_steps):
        data = torch.randint(0, vocab_size, (batch_size, block_size + 1))
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        loss = model(data[:, :-1], data[:, 1:].contiguous()) / gradient_accumulation_steps
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    running = torch.tensor([float(time.time() - start < seconds)])
    torch.distributed.broadcast(running, src=0)
del model  # before its group (PROC013)
destroy_process_group()
