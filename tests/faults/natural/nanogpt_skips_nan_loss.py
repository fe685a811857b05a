"""A rank whose loss is NaN skips the rest of the iteration with `continue`, so it misses a gradient reduction."""
# case: processes=3 ending=hang causes=rank-skips-collective,silent-corruption-by-misaligned-collectives,rank-missing-collective,mismatched-operation ranks=1 framework=ddp

import os

import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size, block_size, vocab_size, n_embd = 8, 16, 64, 32
learning_rate, max_iters, log_interval = 1e-3, 60, 10
grad_clip = 1.0

dist.init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
master_process = ddp_rank == 0
torch.manual_seed(1337 + ddp_rank)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.ln = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets, weights):
        logits = self.lm_head(self.ln(self.wte(idx)))
        loss = F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1), reduction="none")
        return (loss * weights.view(-1)).sum() / weights.sum()


def get_batch(it):
    data = torch.randint(0, vocab_size, (batch_size, block_size + 1))
    weights = torch.ones(batch_size, block_size)
    if ddp_rank == 1 and it == 25:
        weights.zero_()  # only padding: the weighted mean is 0 / 0
    return data[:, :-1], data[:, 1:], weights


model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

for iter_num in range(max_iters):
    X, Y, W = get_batch(iter_num)
    loss = model(X, Y, W)
    if torch.isnan(loss):  # ALSO
        print(f"rank {ddp_rank}: iter {iter_num}: loss is NaN, skipping")
        optimizer.zero_grad(set_to_none=True)
        continue  # GUILTY
    loss.backward()  # ALSO
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        print(f"iter {iter_num}: loss {loss.item():.4f}")

dist.barrier()
if master_process:
    print("training finished")
dist.destroy_process_group()
