"""Rank 0 rewrites the token file in place with fewer tokens while rank 3 still reads the tail of it through np.memmap: SIGBUS.

Modelled on clemsgrs/slide2vec#22 ("fix mmap SIGBUS error": one memmap shared by all ranks) and hiyouga/LlamaFactory#2206.
"""
# case: processes=4 ending=crash causes=segfault-in-worker ranks=3 framework=nanogpt

import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.distributed import barrier, destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
batch_size = 8
block_size = 64
vocab_size = 512
n_embd = 48
max_iters = 200
refresh_interval = 50
log_interval = 10
learning_rate = 1e-3
data_file = os.path.join(tempfile.gettempdir(), f"train-{os.environ['MASTER_PORT']}.bin")
# -----------------------------------------------------------------------------


def tokenize(documents, seed):
    """Write the current snapshot of the crawl as one flat file of token ids."""
    rng = np.random.default_rng(seed)
    tokens = np.memmap(data_file, dtype=np.uint16, mode="w+", shape=(documents * 1000,))  # ALSO
    tokens[:] = rng.integers(0, vocab_size, size=len(tokens), dtype=np.uint16)
    tokens.flush()


class GPTlet(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.ff = nn.Sequential(nn.LayerNorm(n_embd), nn.Linear(n_embd, 4 * n_embd), nn.GELU(),
                                nn.Linear(4 * n_embd, n_embd))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx)
        return F.cross_entropy(self.lm_head(x + self.ff(x)).flatten(0, 1), targets.flatten())


init_process_group(backend="gloo")
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master_process = rank == 0
if master_process:
    tokenize(documents=800, seed=0)
barrier()

train_data = np.memmap(data_file, dtype=np.uint16, mode="r")
shard = len(train_data) // world_size
torch.manual_seed(1337 + rank)


def get_batch():
    ix = rank * shard + torch.randint(shard - block_size - 1, (batch_size,))
    rows = np.stack([train_data[i : i + block_size + 1].astype(np.int64) for i in ix.tolist()])  # GUILTY
    rows = torch.from_numpy(rows)
    return rows[:, :-1], rows[:, 1:].contiguous()


model = DDP(GPTlet())
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
for iter_num in range(1, max_iters + 1):
    X, Y = get_batch()
    loss = model(X, Y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if master_process and iter_num % log_interval == 0:
        print(f"iter {iter_num}: loss {loss.item():.4f}", flush=True)
    if master_process and iter_num % refresh_interval == 0:
        tokenize(documents=610, seed=iter_num)  # ALSO
        print(f"iter {iter_num}: data refreshed, near duplicates removed", flush=True)

destroy_process_group()
