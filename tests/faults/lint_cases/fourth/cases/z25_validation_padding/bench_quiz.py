import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from evaluator import DistributedEvaluator


class QuizItems(Dataset):
    def __init__(self, path, length=64):
        self.rows = [json.loads(line) for line in open(path)]
        self.length = length

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        tokens = torch.zeros(self.length, dtype=torch.long)
        ids = torch.tensor(self.rows[i]["ids"][: self.length])
        tokens[: len(ids)] = ids
        return tokens, torch.tensor(self.rows[i]["answer"])


class Reader(nn.Module):
    def __init__(self, vocab=32000, choices=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, 512)
        self.head = nn.Linear(512, choices)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--items", default="quiz_dev_164.jsonl")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    model = Reader().to(device)
    model.load_state_dict(torch.load(args.weights, map_location=device))
    accuracy = DistributedEvaluator(QuizItems(args.items), 16, device)(model)
    if dist.get_rank() == 0:
        print(json.dumps({"items": len(QuizItems(args.items)), "accuracy": accuracy}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
