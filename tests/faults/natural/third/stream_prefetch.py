"""The prefetch thread of one rank ends with an exception on a damaged record, and its main thread waits for the next batch forever.

In the style of a streaming (IterableDataset) text classifier with a background prefetcher.
"""
# case: processes=3 ending=hang causes=python-exception-on-one-rank,rank-missing-collective ranks=1 framework=ddp

import json
import os
import queue
import tempfile
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

LABELS = {"neg": 0, "pos": 1}


def write_shards(folder, shards, rows):
    for s in range(shards):
        with open(os.path.join(folder, f"shard-{s:02d}.jsonl"), "w") as f:
            for i in range(rows):
                label = "pos" if (i * 7 + s) % 3 else "neg"
                line = json.dumps({"text": f"example {i} of shard {s} is {label}", "label": label})
                f.write(line[: len(line) // 2] + "\n" if (s, i) == (1, 1500) else line + "\n")  # an upload was cut


class Shards(IterableDataset):
    def __init__(self, folder, rank, world):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder))[rank::world]

    def __iter__(self):
        while True:
            for path in self.files:
                with open(path) as f:
                    for line in f:
                        row = json.loads(line)  # ALSO
                        yield row["text"], LABELS[row["label"]]


class Prefetcher:
    """Keeps some batches ready while the model computes."""

    def __init__(self, loader, depth=4):
        self.batches = queue.Queue(maxsize=depth)
        self.thread = threading.Thread(target=self.fill, args=(iter(loader),), daemon=True)
        self.thread.start()

    def fill(self, source):
        for batch in source:  # ALSO
            self.batches.put(batch)

    def __iter__(self):
        return self

    def __next__(self):
        return self.batches.get()  # GUILTY


class BagOfWords(nn.Module):
    def __init__(self, buckets=997, dim=24):
        super().__init__()
        self.buckets = buckets
        self.embed = nn.EmbeddingBag(buckets, dim)
        self.fc = nn.Linear(dim, len(LABELS))

    def encode(self, texts):
        words = [[sum(map(ord, w)) * 31 % self.buckets for w in t.split()] for t in texts]
        offsets = torch.tensor([0] + [len(w) for w in words[:-1]]).cumsum(0)
        return torch.tensor([w for ws in words for w in ws]), offsets

    def forward(self, words, offsets):
        return self.fc(self.embed(words, offsets))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = tempfile.mkdtemp(prefix=f"stream-{rank}-")
    write_shards(folder, shards=world * 2, rows=2000)
    torch.manual_seed(0)
    net = BagOfWords()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    batches = Prefetcher(DataLoader(Shards(folder, rank, world), batch_size=20))
    for step in range(250):
        texts, labels = next(batches)
        loss = nn.functional.cross_entropy(model(*net.encode(texts)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 25 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
