import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

from ckpt import CheckpointManager
from data import PackedLoader


class LM(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.0, batch_first=True)
                                     for _ in range(layers)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1), device=ids.device)
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--ckpt-dir", default="ckpts")
    parser.add_argument("--resume-step", type=int)
    for name, value in (("vocab", 32000), ("dim", 512), ("layers", 8), ("seq-len", 1024), ("rows", 4),
                        ("steps", 2000), ("interval", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(args.seed)
    model = LM(args.vocab, args.dim, args.layers).cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = PackedLoader(args.data, args.seq_len, args.rows, dist.get_rank(), dist.get_world_size())
    progress = {"step": 0}
    manager = CheckpointManager(args.ckpt_dir)
    if args.resume_step is not None:
        manager.load(args.resume_step, model, optimizer, progress, loader)
    batches = iter(loader)
    while progress["step"] < args.steps:
        ids, labels = (t.cuda() for t in next(batches))
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress["step"] += 1
        if progress["step"] % args.interval == 0:
            manager.save(progress["step"], model, optimizer, progress, loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
