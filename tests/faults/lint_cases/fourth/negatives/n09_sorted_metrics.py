import argparse
import json
import os
from collections import defaultdict
from pathlib import Path

import torch
import torch.distributed as dist


class GroupedMetric:
    """Sums per language; a rank may not have seen all languages."""

    def __init__(self, device):
        self.device = device
        self.sums = defaultdict(lambda: torch.zeros(2, dtype=torch.float64, device=device))

    def update(self, language, correct, total):
        self.sums[language] += torch.tensor([correct, total], dtype=torch.float64, device=self.device)

    def all_keys(self):
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, set(self.sums))
        return sorted(set().union(*gathered))

    def compute(self):
        result = {}
        for language in self.all_keys():
            pair = self.sums[language]
            dist.all_reduce(pair)
            result[language] = (pair[0] / pair[1]).item()
        return result


class Translator:
    def __init__(self, path, device):
        self.module = torch.jit.load(path, map_location=device).eval()
        self.device = device

    @torch.no_grad()
    def accuracy(self, record):
        ids = torch.tensor(record["ids"], device=self.device)[None]
        gold = torch.tensor(record["labels"], device=self.device)
        predicted = self.module(ids)[0].argmax(-1)
        return (predicted == gold).sum().item(), gold.numel()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--module", required=True)
    parser.add_argument("--root", type=Path, required=True)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    translator, metric = Translator(args.module, device), GroupedMetric(device)
    paths = sorted(args.root.glob("*/*.jsonl"))
    for path in paths[dist.get_rank() :: dist.get_world_size()]:
        for line in path.read_text().splitlines():
            metric.update(path.parent.name, *translator.accuracy(json.loads(line)))
    result = metric.compute()
    if dist.get_rank() == 0:
        for language, accuracy in result.items():
            print(f"{language:8} {accuracy:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
