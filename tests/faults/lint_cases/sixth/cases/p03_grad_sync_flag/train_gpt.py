import argparse
import math
import os
import time
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class GPTConfig:
    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 6
    n_head: int = 6
    n_embd: int = 384


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        layer = nn.TransformerEncoderLayer(
            config.n_embd, config.n_head, 4 * config.n_embd, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, config.n_layer, enable_nested_tensor=False)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets):
        T = idx.size(1)
        mask = nn.Transformer.generate_square_subsequent_mask(T, device=idx.device)
        x = self.wte(idx) + self.wpe(torch.arange(T, device=idx.device))
        logits = self.lm_head(self.blocks(x, mask=mask, is_causal=True))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class TokenLoader:
    def __init__(self, path, B, T, rank, world_size):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.B, self.T = B, T
        self.stride = B * T * world_size
        self.offset = B * T * rank
        self.pos = self.offset

    def next_batch(self):
        n = self.B * self.T
        buf = torch.from_numpy(self.tokens[self.pos : self.pos + n + 1].astype(np.int64))
        self.pos += self.stride
        if self.pos + self.stride + 1 > len(self.tokens):
            self.pos = self.offset
        return buf[:-1].view(self.B, self.T), buf[1:].view(self.B, self.T)


def get_lr(step, args):
    if step < args.warmup_steps:
        return args.max_lr * (step + 1) / args.warmup_steps
    ratio = min(1.0, (step - args.warmup_steps) / max(1, args.max_steps - args.warmup_steps))
    return 0.1 * args.max_lr + 0.45 * args.max_lr * (1.0 + math.cos(math.pi * ratio))


def main(args):
    dist.init_process_group(backend="nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
    torch.manual_seed(1337)

    assert args.total_batch_size % (args.B * args.T * world_size) == 0
    grad_accum_steps = args.total_batch_size // (args.B * args.T * world_size)
    loader = TokenLoader(args.data, args.B, args.T, rank, world_size)

    model = DDP(GPT(GPTConfig(block_size=args.T)).to(device), device_ids=[int(os.environ["LOCAL_RANK"])])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.max_lr, betas=(0.9, 0.95), weight_decay=0.1)

    for step in range(args.max_steps):
        t0 = time.time()
        optimizer.zero_grad()
        loss_accum = torch.zeros((), device=device)
        for micro_step in range(grad_accum_steps):
            x, y = loader.next_batch()
            x, y = x.to(device), y.to(device)
            with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
                loss = model(x, y)
            loss = loss / grad_accum_steps
            loss_accum += loss.detach()
            model.require_backward_grad_sync = micro_step == grad_accum_steps - 1
            loss.backward()
        dist.all_reduce(loss_accum, op=dist.ReduceOp.AVG)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step, args)
        optimizer.step()
        if rank == 0:
            dt = time.time() - t0
            print(f"step {step} | loss {loss_accum.item():.6f} | norm {norm:.4f} | {dt * 1000:.1f}ms")

    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--total-batch-size", type=int, default=524288)
    p.add_argument("--B", type=int, default=16)
    p.add_argument("--T", type=int, default=1024)
    p.add_argument("--max-lr", type=float, default=6e-4)
    p.add_argument("--warmup-steps", type=int, default=715)
    p.add_argument("--max-steps", type=int, default=19073)
    main(p.parse_args())
