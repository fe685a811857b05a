import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from actor import Actor


class TinyLM(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.block = nn.TransformerEncoderLayer(dim, 4, dim * 4, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids, mask):
        causal = nn.Transformer.generate_square_subsequent_mask(ids.size(1), device=ids.device)
        hidden = self.block(self.embed(ids), src_mask=causal, is_causal=True)
        return self.head(hidden)


def sample_rollouts(args, device, generator):
    ids = torch.randint(0, args.vocab, (args.rollouts, args.max_len), generator=generator)
    lengths = torch.randint(8, args.max_len + 1, (args.rollouts, 1), generator=generator)
    mask = torch.arange(args.max_len).unsqueeze(0) < lengths
    advantages = torch.randn(args.rollouts, generator=generator)
    return {"ids": ids.to(device), "mask": mask.to(device), "advantages": advantages.to(device)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--max-len", type=int, default=256)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--mini-batch-size", type=int, default=32)
    parser.add_argument("--train-token-budget", type=int, default=1024)
    parser.add_argument("--infer-token-budget", type=int, default=4096)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--iterations", type=int, default=50)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(7)
    module = FSDP(TinyLM(args.vocab, 128).to(device), device_id=device)
    actor = Actor(module, torch.optim.AdamW(module.parameters(), lr=1e-5), args)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for step in range(args.iterations):
        batch = sample_rollouts(args, device, generator)
        batch["old_logps"] = actor.compute_log_prob(batch)
        loss = actor.update_policy(batch)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
