import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

from clip import clip_grad_norm_across_experts
from experts import IGNORE, DomainDump, DomainExpert


def train(args, device):
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    expert = DomainExpert(args.hidden, args.vocab).to(device)
    optimizer = torch.optim.AdamW(expert.parameters(), lr=args.lr)
    loader = DataLoader(DomainDump(args.dump, rank), args.batch_size, shuffle=True, drop_last=True)
    step = 0
    for epoch in range(args.epochs):
        for states, labels in loader:
            states, labels = states.to(device), labels.to(device)
            optimizer.zero_grad()
            if (labels != IGNORE).any():
                logits = expert(states)
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
                loss.backward()
            norm = clip_grad_norm_across_experts(expert.parameters(), args.max_norm)
            optimizer.step()
            step += 1
            if rank == 0 and step % 50 == 0:
                print(f"epoch {epoch} step {step} grad norm {norm.item():.3f}")
    return expert


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump", required=True)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--max-norm", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    expert = train(args, device)
    torch.save(expert.state_dict(), f"expert_{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
