import gzip
import json
import random
from pathlib import Path

import torch
from torch.utils.data import IterableDataset, get_worker_info


class JsonlCorpus(IterableDataset):
    """Streams token blocks from gzipped json lines; the files are divided between the workers."""

    def __init__(self, root, tokenizer, block=1024, seed=0):
        self.files = sorted(Path(root).glob("*.jsonl.gz"))
        self.tokenizer = tokenizer
        self.block = block
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _shard(self):
        files = list(self.files)
        random.Random(self.seed + self.epoch).shuffle(files)
        info = get_worker_info()
        if info is None:
            return files
        return files[info.id :: info.num_workers]

    def __iter__(self):
        buffer = []
        for path in self._shard():
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    buffer += self.tokenizer(json.loads(line)["text"]).input_ids
                    while len(buffer) > self.block:
                        yield torch.tensor(buffer[: self.block + 1])
                        buffer = buffer[self.block :]
