import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from checkpointing import CheckpointRotator


class Classifier(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim)
        self.head = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.head(self.emb(ids))


def toy_split(n, vocab, seed):
    gen = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (n, 32), generator=gen)
    return TensorDataset(ids, torch.randint(0, 2, (n,), generator=gen))


@torch.no_grad()
def evaluate(net, loader, device):
    net.eval()
    totals = torch.zeros(2, device=device)
    for ids, labels in loader:
        logits = net(ids.to(device))
        totals[0] += F.cross_entropy(logits, labels.to(device), reduction="sum")
        totals[1] += len(labels)
    dist.all_reduce(totals)
    net.train()
    return (totals[0] / totals[1]).item()


def main(args):
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    torch.manual_seed(42)

    if dist.get_rank() == 0:
        os.makedirs(args.output_dir, exist_ok=True)
    dist.barrier()

    net = Classifier(args.vocab, 128).to(device)
    model = DDP(net, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    train_set, dev_set = toy_split(8192, args.vocab, 0), toy_split(1024, args.vocab, 1)
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    dev_loader = DataLoader(dev_set, args.batch_size, sampler=DistributedSampler(dev_set, shuffle=False))
    rotator = CheckpointRotator(args.output_dir, args.save_total_limit, local_rank)

    step, best = 0, float("inf")
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for ids, labels in train_loader:
            loss = F.cross_entropy(model(ids.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
        score = evaluate(net, dev_loader, device)
        rotator.save(step, net.state_dict(), is_best=score < best)
        best = min(best, score)
    rotator.load_best(net)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output-dir", default="/shared/finetuned-cola")
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--save-total-limit", type=int, default=1)
    main(parser.parse_args())
