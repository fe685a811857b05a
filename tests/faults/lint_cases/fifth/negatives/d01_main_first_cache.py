import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def load_and_cache_examples(args, split):
    """Rank 0 builds the tensors, the other ranks read what it has cached."""
    if args.rank not in (-1, 0):
        dist.barrier()
    cached = os.path.join(args.data_dir, f"cached_{split}_{args.max_len}.pt")
    if os.path.exists(cached):
        ids, labels = torch.load(cached)
    else:
        with open(os.path.join(args.data_dir, f"{split}.jsonl")) as fp:
            rows = [json.loads(line) for line in fp]
        ids = torch.zeros(len(rows), args.max_len, dtype=torch.long)
        for i, row in enumerate(rows):
            tokens = torch.tensor([1 + ord(c) % 255 for c in row["text"][: args.max_len]])
            ids[i, : len(tokens)] = tokens
        labels = torch.tensor([row["label"] for row in rows])
        if args.rank in (-1, 0):
            torch.save((ids, labels), cached)
    if args.rank == 0:
        dist.barrier()
    return TensorDataset(ids, labels)


class BagClassifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.bag = nn.EmbeddingBag(256, 128, padding_idx=0)
        self.out = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, classes))

    def forward(self, ids):
        return self.out(self.bag(ids))


@torch.no_grad()
def evaluate(net, dataset, device):
    net.eval()
    hits = 0
    for ids, labels in DataLoader(dataset, batch_size=256):
        hits += (net(ids.to(device)).argmax(1) == labels.to(device)).sum().item()
    net.train()
    return hits / len(dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--max_len", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--eval_steps", type=int, default=200)
    args = parser.parse_args()
    args.rank = int(os.environ.get("RANK", -1))
    args.local_rank = int(os.environ.get("LOCAL_RANK", -1))
    device = torch.device("cuda", max(args.local_rank, 0))
    torch.cuda.set_device(device)
    if args.local_rank != -1:
        dist.init_process_group("nccl")
    is_main = args.rank in (-1, 0)
    train_set = load_and_cache_examples(args, "train")
    dev_set = load_and_cache_examples(args, "dev")
    torch.manual_seed(42)
    model = net = BagClassifier(4).to(device)
    sampler = None
    if args.local_rank != -1:
        model = DistributedDataParallel(net, device_ids=[args.local_rank])
        sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=64, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, best = 0, 0.0
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.eval_steps == 0:
                if is_main:
                    accuracy = evaluate(net, dev_set, device)
                    if accuracy > best:
                        best = accuracy
                        torch.save(net.state_dict(), os.path.join(args.data_dir, "best.pt"))
                    print(f"step {step} accuracy {accuracy:.4f} best {best:.4f}")
                if args.local_rank != -1:
                    dist.barrier()


if __name__ == "__main__":
    main()
