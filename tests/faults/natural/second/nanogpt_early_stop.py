"""Each rank judges early stopping by its own validation loss; rank 1 stops and exits with 0 while the others still train.

Modelled on ACEsuit/mace#1216 ("exit from epoch loop triggered by patience for distributed fits") and isi-nlp/rtg#11.
"""
# case: processes=4 ending=crash causes=rank-exits-early,uneven-inputs,rank-missing-collective,peer-lost ranks=1 framework=nanogpt

import os

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
eval_interval = 20
eval_iters = 5
patience = 3
max_iters = 4000
batch_size = 8
block_size = 32
vocab_size = 64
n_embd = 48
learning_rate = 1e-3
weight_decay = 1e-1
# -----------------------------------------------------------------------------

init_process_group(backend="gloo")
ddp_rank = int(os.environ["RANK"])
ddp_world_size = int(os.environ["WORLD_SIZE"])
torch.manual_seed(1337)


def make_text(seed, size=20000):
    """A periodic 'language'; the validation part of one shard is noise (a scanned table)."""
    g = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 4, (size,), generator=g)
    return steps.cumsum(0) % vocab_size


train_data = make_text(ddp_rank)
val_data = make_text(100 + ddp_rank, 4000)
if ddp_rank == 1:
    val_data = torch.randint(0, vocab_size, (4000,), generator=torch.Generator().manual_seed(5))


class NextToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets):
        x = self.wte(idx)
        return F.cross_entropy(self.lm_head(x + self.mlp(x)).flatten(0, 1), targets.flatten())


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.stack([raw_model(*get_batch("val")) for _ in range(eval_iters)])
    model.train()
    return losses.mean().item()


model = DDP(NextToken())
raw_model = model.module
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
best_val_loss, bad_evals = float("inf"), 0

for iter_num in range(max_iters):
    if iter_num % eval_interval == 0:
        val_loss = estimate_loss()
        bad_evals = 0 if val_loss < best_val_loss else bad_evals + 1  # ALSO
        best_val_loss = min(val_loss, best_val_loss)
        if ddp_rank == 0:
            print(f"step {iter_num}: val loss {val_loss:.4f}", flush=True)
        if bad_evals >= patience:
            print(f"no improvement for {patience} evaluations, training is complete", flush=True)
            break  # GUILTY
    loss = model(*get_batch("train"))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

destroy_process_group()  # ALSO
