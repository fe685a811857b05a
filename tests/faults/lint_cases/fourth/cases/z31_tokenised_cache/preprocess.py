import json
import logging

import torch
import torch.distributed as dist
from torch.utils.data import Dataset

logger = logging.getLogger(__name__)


class TokenBlocks(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def encode(example, tokenizer, cutoff):
    prompt = tokenizer(example["instruction"] + example.get("input", "")).input_ids
    answer = tokenizer(example["output"]).input_ids + [tokenizer.eos_token_id]
    ids = (prompt + answer)[:cutoff]
    labels = ([-100] * len(prompt) + answer)[:cutoff]
    return torch.tensor(ids), torch.tensor(labels)


def preprocess_dataset(args, tokenizer):
    if dist.get_rank() == 0 and not args.cache.exists():
        logger.warning("tokenizing %s, this takes about 35 minutes for 430k examples", args.corpus)
        rows = []
        with open(args.corpus) as lines:
            for line in lines:
                rows.append(encode(json.loads(line), tokenizer, args.cutoff))
        args.cache.parent.mkdir(parents=True, exist_ok=True)
        torch.save(rows, args.cache)
    dist.barrier()
    return TokenBlocks(torch.load(args.cache, weights_only=False))
