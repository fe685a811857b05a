"""Healthy: one rank gets SIGUSR1, all ranks agree on the flag by a reduction, rank 0 saves for 12 s, and all end with status 0.

In the style of Slurm scripts that requeue themselves; the training ends at a third of its iterations, on purpose.
"""
# case: processes=3 ending=well causes=- ranks=- framework=nanogpt limit_s=120

import os
import signal
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

block_size, vocab_size, n_embd, max_iters = 24, 65, 32, 600


class StopFlag:
    """Set by a signal on any rank, true on all ranks at the same iteration."""

    def __init__(self):
        self.requested = False
        signal.signal(signal.SIGUSR1, self._on_signal)

    def _on_signal(self, signum, frame):
        self.requested = True

    def agreed(self):
        flag = torch.tensor([int(self.requested)])
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.attn = nn.MultiheadAttention(n_embd, 2, batch_first=True)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets):
        x = self.wte(idx)
        mask = torch.triu(torch.ones(idx.shape[1], idx.shape[1], dtype=torch.bool), diagonal=1)
        x = x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        return F.cross_entropy(self.lm_head(x).view(-1, vocab_size), targets.reshape(-1))


dist.init_process_group("gloo")
rank = dist.get_rank()
stop = StopFlag()
torch.manual_seed(1337)
model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1337 + rank)
if rank == 2:  # the scheduler warns one task of the step
    warning = subprocess.Popen(["sh", "-c", f"sleep 5; kill -USR1 {os.getpid()}"])

for iter_num in range(max_iters):
    data = torch.randint(0, vocab_size, (4, block_size + 1))
    loss = model(data[:, :-1], data[:, 1:])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    time.sleep(0.03)
    if iter_num % 10 == 0:
        if rank == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
        if stop.agreed():
            break

if rank == 0:
    with tempfile.NamedTemporaryFile(prefix="requeue-", suffix=".pt") as file:
        torch.save({"model": model.module.state_dict(), "iter_num": iter_num}, file)
        time.sleep(12)
    print(f"saved at iter {iter_num}, ready to be requeued", flush=True)
dist.barrier()
if rank == 2:
    warning.wait()
dist.destroy_process_group()
