"""Healthy: gradient accumulation in the style of nanoGPT, where only the last micro step synchronizes gradients."""
# case: processes=3 ending=well framework=ddp

import os
import time

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

gradient_accumulation_steps = 15
batch_size, block_size, vocab_size, n_embd = 4, 32, 64, 64
max_iters, eval_interval, eval_iters = 60, 20, 10

init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
ddp_world_size = int(os.environ["WORLD_SIZE"])
master_process = ddp_rank == 0
assert gradient_accumulation_steps % ddp_world_size == 0
gradient_accumulation_steps //= ddp_world_size
torch.manual_seed(1337 + ddp_rank)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.rnn = nn.GRU(n_embd, n_embd, batch_first=True)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets):
        logits = self.lm_head(self.rnn(self.wte(idx))[0])
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


def get_batch():
    data = torch.randint(0, vocab_size, (batch_size, block_size + 1))
    return data[:, :-1], data[:, 1:]


@torch.no_grad()
def estimate_loss(raw_model):
    return torch.stack([raw_model(*get_batch()) for _ in range(eval_iters)]).mean()


model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
t0 = time.time()
for iter_num in range(max_iters):
    if iter_num % eval_interval == 0 and master_process:
        print(f"step {iter_num}: val loss {estimate_loss(model.module):.4f}")
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        loss = model(*get_batch()) / gradient_accumulation_steps
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % 10 == 0 and master_process:
        print(f"iter {iter_num}: time {1000 * (time.time() - t0):.0f} ms")
        t0 = time.time()
del model  # before its group (PROC013)
destroy_process_group()
