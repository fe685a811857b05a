import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from checkpoint_manager import load_checkpoint, save_checkpoint
from optim import ShardedAdamW


class TinyGPT(nn.Module):
    def __init__(self, vocab, depth):
        super().__init__()
        dim = 64 * depth
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, depth, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        x, y = tokens[:, :-1], tokens[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        logits = self.head(self.blocks(self.embed(x), mask=mask, is_causal=True))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--num-iterations", type=int, default=2000)
    parser.add_argument("--resume-step", type=int, default=-1)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(1337)
    model = TinyGPT(4096, args.depth).to(device)
    optimizer = ShardedAdamW(model.parameters(), lr=3e-4)
    checkpoint_dir = os.path.join("base_checkpoints", f"d{args.depth}")
    start = 0
    if args.resume_step >= 0:
        weights, moments, meta = load_checkpoint(checkpoint_dir, args.resume_step, device, rank)
        model.load_state_dict(weights)
        optimizer.load_state_dict(moments)
        start = meta["step"]
    generator = torch.Generator().manual_seed(1000 * start + rank)

    for step in range(start, args.num_iterations):
        tokens = torch.randint(0, 4096, (8, 257), generator=generator).to(device)
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"step {step:05d} | loss {loss.item():.4f}")

    meta = {"step": args.num_iterations, "depth": args.depth}
    save_checkpoint(
        checkpoint_dir, args.num_iterations, model.state_dict(), optimizer.state_dict(), meta, rank=rank
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
