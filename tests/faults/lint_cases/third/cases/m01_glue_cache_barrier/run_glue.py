import argparse
import json
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

logger = logging.getLogger(__name__)


class SequenceClassifier(nn.Module):
    def __init__(self, vocab_size=30522, hidden=128, num_labels=2):
        super().__init__()
        self.embeddings = nn.EmbeddingBag(vocab_size, hidden)
        self.classifier = nn.Linear(hidden, num_labels)

    def forward(self, input_ids, labels=None):
        logits = self.classifier(self.embeddings(input_ids))
        if labels is None:
            return (logits,)
        return nn.functional.cross_entropy(logits, labels), logits


def load_and_cache_examples(args, evaluate=False):
    if args.local_rank not in [-1, 0]:
        dist.barrier()  # only the first process in distributed training processes the dataset

    mode = "dev" if evaluate else "train"
    cached_features_file = os.path.join(args.data_dir, f"cached_{mode}_{args.max_seq_length}")
    if os.path.exists(cached_features_file):
        logger.info("Loading features from cached file %s", cached_features_file)
        features = torch.load(cached_features_file)
    else:
        logger.info("Creating features from dataset file at %s", args.data_dir)
        with open(os.path.join(args.data_dir, f"{mode}.jsonl")) as reader:
            rows = [json.loads(line) for line in reader]
        ids = torch.zeros(len(rows), args.max_seq_length, dtype=torch.long)
        for i, row in enumerate(rows):
            tokens = torch.tensor(row["input_ids"][: args.max_seq_length])
            ids[i, : len(tokens)] = tokens
        features = (ids, torch.tensor([row["label"] for row in rows]))
        if args.local_rank in [-1, 0]:
            torch.save(features, cached_features_file)

    if args.local_rank == 0:
        dist.barrier()  # the others will use the cache
    return TensorDataset(*features)


def train(args, train_dataset, model):
    sampler = RandomSampler(train_dataset) if args.local_rank == -1 else DistributedSampler(train_dataset)
    loader = DataLoader(train_dataset, sampler=sampler, batch_size=args.train_batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    if args.local_rank != -1:
        model = DistributedDataParallel(model, device_ids=[args.local_rank], output_device=args.local_rank)
    model.train()
    for epoch in range(args.num_train_epochs):
        if args.local_rank != -1:
            sampler.set_epoch(epoch)
        for input_ids, labels in loader:
            loss = model(input_ids.to(args.device), labels.to(args.device))[0]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def evaluate(args, model):
    eval_dataset = load_and_cache_examples(args, evaluate=True)
    loader = DataLoader(eval_dataset, sampler=SequentialSampler(eval_dataset), batch_size=64)
    model.eval()
    correct = 0
    with torch.no_grad():
        for input_ids, labels in loader:
            logits = model(input_ids.to(args.device))[0]
            correct += (logits.argmax(-1).cpu() == labels).sum().item()
    return {"acc": correct / len(eval_dataset)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--do_eval", action="store_true")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--train_batch_size", type=int, default=8)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", -1)))
    args = parser.parse_args()

    if args.local_rank == -1:
        args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        torch.cuda.set_device(args.local_rank)
        args.device = torch.device("cuda", args.local_rank)
        dist.init_process_group(backend="nccl")

    torch.manual_seed(42)
    model = SequenceClassifier().to(args.device)
    train_dataset = load_and_cache_examples(args)
    train(args, train_dataset, model)

    if args.do_eval and args.local_rank in [-1, 0]:
        result = evaluate(args, model)
        logger.info("eval result %s", result)


if __name__ == "__main__":
    main()
