"""Character model in one file; the master estimates the losses on the bare module while the others go on to the next step."""
import math
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = os.environ.get("OUT_DIR", "out")
eval_interval = 20
eval_iters = 4
log_interval = 10
gradient_accumulation_steps = 4
batch_size, block_size = 8, 16
n_embd, n_layer, dropout = 32, 2, 0.1
learning_rate, min_lr, warmup_iters, max_iters = 3e-3, 3e-4, 5, 60
grad_clip = 1.0
text = "to be or not to be that is the question whether tis nobler in the mind to suffer " * 20

chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
splits = {"train": ids[: int(0.9 * len(ids))], "val": ids[int(0.9 * len(ids)):]}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))

    def forward(self, x):
        q, k, v = (t.unsqueeze(1) for t in self.qkv(self.ln1(x)).split(n_embd, dim=2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1))
        return x + self.mlp(self.ln2(x))


class CharModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(chars), n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.head = nn.Linear(n_embd, len(chars))

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1), device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


ddp = int(os.environ.get("RANK", -1)) != -1
use_cuda = torch.cuda.is_available()
if ddp:
    ddp_rank, ddp_local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    device = f"cuda:{ddp_local_rank}" if use_cuda else "cpu"
    if use_cuda:
        torch.cuda.set_device(device)
    init_process_group(backend="nccl" if use_cuda else "gloo")
    master_process, seed_offset = ddp_rank == 0, ddp_rank
    assert gradient_accumulation_steps % world_size == 0
    gradient_accumulation_steps //= world_size
else:
    device = "cuda" if use_cuda else "cpu"
    master_process, seed_offset, world_size = True, 0, 1

if master_process:
    os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337 + seed_offset)
data_rng = torch.Generator().manual_seed(1337 + seed_offset)
eval_rng = torch.Generator().manual_seed(1)


def get_batch(split, rng):
    data = splits[split]
    at = torch.randint(len(data) - block_size - 1, (batch_size,), generator=rng)
    x = torch.stack([data[i:i + block_size] for i in at])
    y = torch.stack([data[i + 1:i + 1 + block_size] for i in at])
    return x.to(device), y.to(device)


model = CharModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank] if use_cuda else None)
raw_model = model.module if ddp else model


@torch.no_grad()
def estimate_loss():
    out = {}
    raw_model.eval()
    for split in ("train", "val"):
        out[split] = torch.stack([raw_model(*get_batch(split, eval_rng))[1] for _ in range(eval_iters)]).mean().item()
    raw_model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


iter_num, best_val_loss, t0 = 0, 1e9, time.time()
X, Y = get_batch("train", data_rng)
while True:
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % eval_interval == 0 and master_process:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if losses["val"] < best_val_loss:
            best_val_loss = losses["val"]
            if iter_num > 0:
                path = os.path.join(out_dir, "ckpt.pt")
                torch.save({"model": raw_model.state_dict(), "iter_num": iter_num, "best_val_loss": best_val_loss}, path + ".tmp")
                os.replace(path + ".tmp", path)
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        _, loss = model(X, Y)
        loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train", data_rng)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0 and master_process:
        t1 = time.time()
        print(f"iter {iter_num}: loss {loss.item() * gradient_accumulation_steps:.4f}, time {(t1 - t0) * 1000:.1f}ms")
        t0 = t1
    iter_num += 1
    if iter_num > max_iters:
        break

if ddp:
    destroy_process_group()
