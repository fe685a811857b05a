import argparse
import os
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 8, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask):
        h = self.norm(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class Llama(nn.Module):
    def __init__(self, vocab=32000, dim=1024, layers=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([Layer(dim) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        n = ids.size(1)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=ids.device), diagonal=1)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def get_model(strategy):
    model = Llama()
    return FSDP(
        model,
        sharding_strategy=strategy,
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Layer}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )


def train(args):
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = dist.get_rank()
    torch.manual_seed(42)
    model = get_model(ShardingStrategy.FULL_SHARD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_steps)
    data = TensorDataset(torch.randint(0, 32000, (100000, 1025)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler, drop_last=True)

    model.train()
    real_step, epoch = 0, 0
    while real_step < args.total_steps:
        sampler.set_epoch(epoch)
        for step, (ids,) in enumerate(loader):
            ids = ids.to(f"cuda:{local_rank}")
            is_accumulating = (step + 1) % args.accumulation != 0
            with model.no_sync() if is_accumulating else nullcontext():
                logits = model(ids[:, :-1])
                loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
                (loss / args.accumulation).backward()
            if is_accumulating:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            real_step += 1
            if rank == 0 and real_step % 10 == 0:
                print(f"step {real_step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
            if real_step >= args.total_steps:
                break
        epoch += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--micro_batch", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--total_steps", type=int, default=10000)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    train(parser.parse_args())
    dist.destroy_process_group()
