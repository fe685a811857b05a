"""Fine-tunes a sentence pair classifier. Features are built once and cached next to the data."""
import argparse
import logging
import os
import random
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)

LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "-1"))
VOCAB, MAX_LEN = 50, 12


class PairProcessor:
    labels = ("other", "same")
    sizes = {"train": 32, "dev": 16}

    def examples(self, split, seed=0):
        rng = random.Random(f"{type(self).__name__}-{split}-{seed}")
        for _ in range(self.sizes[split]):
            ids = [rng.randrange(1, VOCAB) for _ in range(rng.randint(4, MAX_LEN))]
            yield ids, rng.randrange(len(self.labels))


class NliProcessor(PairProcessor):
    labels = ("contradiction", "entailment", "neutral")
    sizes = {"train": 24, "dev": 12}


PROCESSORS = {"pairs": PairProcessor, "nli": NliProcessor}


@contextmanager
def main_process_first():
    """The main process runs the body before the others do, so that they find its result in the cache."""
    if LOCAL_RANK > 0:
        dist.barrier()
    yield LOCAL_RANK in (-1, 0)
    if LOCAL_RANK == 0:
        dist.barrier()  # RELATED: hidden-collective


def build_features(processor, split):
    ids, labels = [], []
    for tokens, label in processor.examples(split):
        ids.append(tokens + [0] * (MAX_LEN - len(tokens)))
        labels.append(label)
    return {"ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def load_and_cache_examples(args, task, evaluate=False):
    split = "dev" if evaluate else "train"
    cached = os.path.join(args.data_dir, f"cached_{split}_{task}_{MAX_LEN}.pt")
    with main_process_first() as first:
        if os.path.exists(cached) and not args.overwrite_cache:
            features = torch.load(cached)
        else:
            features = build_features(PROCESSORS[task](), split)
            if first:
                logger.info("saving features to %s", cached)
                torch.save(features, cached)
    return TensorDataset(features["ids"], features["labels"])


class BagClassifier(nn.Module):
    def __init__(self, n_labels, dim=16):
        super().__init__()
        self.emb = nn.EmbeddingBag(VOCAB, dim, padding_idx=0)
        self.out = nn.Linear(dim, n_labels)

    def forward(self, ids):
        return self.out(self.emb(ids))


def train(args, dataset, model):
    sampler = RandomSampler(dataset) if LOCAL_RANK == -1 else DistributedSampler(dataset)
    loader = DataLoader(dataset, sampler=sampler, batch_size=args.batch_size)
    if LOCAL_RANK != -1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    step = 0
    for epoch in range(args.epochs):
        if isinstance(sampler, DistributedSampler):
            sampler.set_epoch(epoch)
        for ids, labels in loader:
            loss = nn.functional.cross_entropy(model(ids), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if LOCAL_RANK in (-1, 0) and step % args.logging_steps == 0:
                logger.info("step %d loss %.4f", step, loss.item())
    return step, getattr(model, "module", model)


@torch.no_grad()
def evaluate(args, model, prefix=""):
    dataset = load_and_cache_examples(args, args.task, evaluate=True)
    loader = DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=args.batch_size)
    model.eval()
    hits = sum((model(ids).argmax(-1) == labels).sum().item() for ids, labels in loader)
    return {f"{prefix}acc": hits / len(dataset)}


def average_steps(step):
    t = torch.tensor([float(step)])
    dist.all_reduce(t)
    return t.item() / dist.get_world_size()


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--task", choices=sorted(PROCESSORS), default="pairs")
    ap.add_argument("--data_dir", default=os.environ.get("CASE_TMP", "."))
    ap.add_argument("--overwrite_cache", action="store_true")
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch_size", type=int, default=8)
    ap.add_argument("--logging_steps", type=int, default=2)
    ap.add_argument("--lr", type=float, default=1e-2)
    return ap.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO if LOCAL_RANK in (-1, 0) else logging.WARN)
    if LOCAL_RANK != -1:
        dist.init_process_group("gloo")
    torch.manual_seed(42)
    model = BagClassifier(len(PROCESSORS[args.task].labels))
    step, model = train(args, load_and_cache_examples(args, args.task), model)

    if LOCAL_RANK in (-1, 0):
        torch.save(model.state_dict(), os.path.join(args.data_dir, "pytorch_model.bin"))

    results = {}
    if LOCAL_RANK in (-1, 0):  # RELATED: guard
        results = evaluate(args, model, prefix="dev_")  # EXPECT: rank-guarded-collective
    if LOCAL_RANK != -1:
        logger.info("%s after %.1f steps per process", results, average_steps(step))


if __name__ == "__main__":
    main()
