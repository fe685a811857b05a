import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Prompts(Dataset):
    def __init__(self, path):
        self.rows = [json.loads(line) for line in open(path)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return i, torch.tensor(self.rows[i]["ids"])


class ShardWriter:
    """predictions.rank3-of-8.jsonl and so on."""

    def __init__(self, folder, name):
        self.folder, self.name = Path(folder), name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self._shard(dist.get_rank())
        self.file = open(self.path, "w")

    def _shard(self, rank):
        return self.folder / f"{self.name}.rank{rank}-of-{dist.get_world_size()}.jsonl"

    def write(self, row):
        self.file.write(json.dumps(row) + "\n")

    def finish(self):
        self.file.close()
        dist.barrier()
        if dist.get_rank() == 0:
            rows = []
            for rank in range(dist.get_world_size()):
                rows += [json.loads(line) for line in self._shard(rank).read_text().splitlines()]
            rows.sort(key=lambda row: row["id"])
            (self.folder / f"{self.name}.json").write_text(json.dumps(rows, indent=1))
            for rank in range(dist.get_world_size()):
                self._shard(rank).unlink()
        dist.barrier()


class Scorer(nn.Module):
    def __init__(self, vocab=32000, dim=256):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, ids):
        return self.out(self.embed(ids[None])).squeeze()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--out", default="predictions")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    model = Scorer().to(device).eval()
    model.load_state_dict(torch.load(args.weights, map_location=device))
    data = Prompts(args.prompts)
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    writer = ShardWriter(args.out, "predictions")
    with torch.no_grad():
        for index, ids in DataLoader(mine, batch_size=None):
            writer.write({"id": int(index), "score": model(ids.to(device)).item()})
    writer.finish()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
