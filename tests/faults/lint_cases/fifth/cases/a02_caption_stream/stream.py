import itertools
import json
from pathlib import Path

import torch
from torch.utils.data import IterableDataset


class CaptionStream(IterableDataset):
    """Reads the caption shards in order and keeps every n-th record for this process."""

    def __init__(self, root, rank, world_size, max_tokens=64):
        self.shards = sorted(Path(root).glob("captions-*.jsonl"))
        self.rank = rank
        self.world_size = world_size
        self.max_tokens = max_tokens

    def records(self):
        for shard in self.shards:
            with shard.open() as lines:
                for line in lines:
                    yield json.loads(line)

    def count(self):
        return sum(1 for _ in self.records())

    def encode(self, record):
        ids = [ord(c) % 256 for c in record["caption"]][: self.max_tokens]
        ids += [0] * (self.max_tokens - len(ids))
        return {
            "tokens": torch.tensor(ids),
            "feature": torch.tensor(record["feature"], dtype=torch.float32),
        }

    def __iter__(self):
        for record in itertools.islice(self.records(), self.rank, None, self.world_size):
            yield self.encode(record)
