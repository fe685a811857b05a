"""The scheduler's SIGUSR1 reaches one rank only; that rank leaves the training loop to save and be requeued, the others train on.

Modelled on kyutai-labs/pocket-tts#277 (the stop flag has to be reduced, or the others wait in the next collective).
"""
# case: processes=3 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective,uneven-inputs ranks=1 framework=nanogpt

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

block_size, vocab_size, n_embd, max_iters = 32, 65, 32, 400
out_dir = tempfile.mkdtemp(prefix="requeue-")
interrupted = False


def on_usr1(signum, frame):
    global interrupted
    interrupted = True


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.mlp = nn.Sequential(nn.LayerNorm(n_embd), nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        logits = self.lm_head(x + self.mlp(x))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


def get_batch():
    data = torch.randint(0, vocab_size, (8, block_size + 1))
    return data[:, :-1], data[:, 1:]


def save_snapshot(model, optimizer, iter_num, rank):
    path = os.path.join(out_dir, f"snapshot-{rank}.pt")
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, path)


def slurm_notice(rank):
    """Stand-in for ``#SBATCH --signal=USR1@90``, which this cluster delivers to the first task of each step only."""
    if rank == 1:
        subprocess.Popen(["sh", "-c", f"sleep 4; kill -USR1 {os.getpid()}"])


dist.init_process_group("gloo")
rank = dist.get_rank()
signal.signal(signal.SIGUSR1, on_usr1)
torch.manual_seed(1337)
model = DDP(GPT())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(1337 + rank)
slurm_notice(rank)

for iter_num in range(max_iters):
    X, Y = get_batch()
    loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    time.sleep(0.04)
    if iter_num % 20 == 0 and rank == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
    if interrupted:  # GUILTY
        break  # ALSO

save_snapshot(model, optimizer, iter_num, rank)
dist.barrier()  # ALSO
dist.destroy_process_group()
