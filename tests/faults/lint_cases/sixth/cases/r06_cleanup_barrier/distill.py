import argparse
import glob
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import dist_utils


class ShardReader:
    """Streams fixed-size batches from the token shards that belong to this rank."""

    def __init__(self, pattern, batch_size, seq_len):
        paths = sorted(glob.glob(pattern))
        self.paths = paths[dist_utils.rank()::dist_utils.size()]
        if not self.paths:
            raise FileNotFoundError(f"rank {dist_utils.rank()} has no shard in {pattern}")
        self.batch_size = batch_size
        self.seq_len = seq_len

    def batches(self, limit):
        done = 0
        while done < limit:
            for path in self.paths:
                tokens = torch.load(path, map_location="cpu")
                need = self.batch_size * self.seq_len
                if tokens.numel() < need:
                    raise ValueError(f"{path}: {tokens.numel()} tokens, at least {need} needed")
                for start in range(0, tokens.numel() - need + 1, need):
                    yield tokens[start:start + need].view(self.batch_size, self.seq_len)
                    done += 1
                    if done == limit:
                        return


def build_lm(vocab, dim, layers):
    layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Embedding(vocab, dim), nn.TransformerEncoder(layer, layers), nn.Linear(dim, vocab))


def distill_loss(student_logits, teacher_logits, temperature):
    student = F.log_softmax(student_logits / temperature, dim=-1).flatten(0, 1)
    teacher = F.log_softmax(teacher_logits / temperature, dim=-1).flatten(0, 1)
    return F.kl_div(student, teacher, log_target=True, reduction="batchmean") * temperature ** 2


def main(args, device):
    torch.manual_seed(args.seed)
    teacher = build_lm(args.vocab, args.dim, args.layers).to(device).eval()
    teacher.load_state_dict(torch.load(args.teacher, map_location=device))
    student = build_lm(args.vocab, args.dim, args.keep_layers).to(device)
    model = DistributedDataParallel(student, device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    reader = ShardReader(args.shards, args.batch_size, args.seq_len)
    for step, ids in enumerate(reader.batches(args.steps)):
        ids = ids.to(device)
        with torch.no_grad():
            target = teacher(ids)
        loss = distill_loss(model(ids), target, args.temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            value = dist_utils.mean(loss.item(), device)
            dist_utils.print_rank_0(f"step {step} kd {value:.4f}")
    if dist_utils.rank() == 0:
        os.makedirs(os.path.dirname(args.output) or ".", exist_ok=True)
        torch.save(student.state_dict(), args.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--output", default="student.pt")
    for name, value in (("vocab", 32000), ("dim", 1024), ("layers", 16), ("keep-layers", 8), ("batch-size", 4),
                        ("seq-len", 1024), ("steps", 5000), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--temperature", type=float, default=1.0)
    cli = parser.parse_args()
    try:
        main(cli, dist_utils.setup())
    finally:
        dist_utils.cleanup()
