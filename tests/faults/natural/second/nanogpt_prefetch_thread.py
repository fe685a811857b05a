"""The prefetch thread of rank 1 ends at a truncated shard without a word; the training loop waits at the empty queue forever.

Modelled on RadarML/red-rover#23 ("Prefetch hangs forever if the iterator raises an exception").
"""
# case: processes=4 ending=hang causes=rank-missing-collective,stalled-outside-collectives ranks=1 framework=nanogpt

import logging
import os
import queue
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

logging.basicConfig(level=logging.INFO)
log = logging.getLogger("train")

block_size = 32
batch_size = 8
vocab_size = 128
max_iters = 400
data_dir = Path(tempfile.gettempdir()) / f"nanogpt-shards-{os.environ['MASTER_PORT']}"


def write_shards(rank, shards=6, rows=80):
    """Tokenize this rank's part of the corpus. (The upload of one shard was cut off.)"""
    folder = data_dir / f"rank{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(rank)
    for s in range(shards):
        raw = rng.integers(0, vocab_size, size=rows * (block_size + 1), dtype=np.uint16).tobytes()
        if rank == 1 and s == 2:
            raw = raw[: len(raw) // 3]
        (folder / f"shard_{s:03d}.bin").write_bytes(raw)
    return sorted(folder.glob("*.bin"))


class Prefetcher:
    """Reads shards in a thread, so that the next batch is ready when it is needed."""

    def __init__(self, paths, depth=4):
        self.paths = paths
        self.batches = queue.Queue(maxsize=depth)
        threading.Thread(target=self._run, name="prefetch", daemon=True).start()

    def _run(self):
        try:
            while True:
                for path in self.paths:
                    rows = np.fromfile(path, dtype=np.uint16).reshape(-1, block_size + 1)
                    for i in range(0, len(rows), batch_size):
                        self.batches.put(torch.from_numpy(rows[i : i + batch_size].astype(np.int64)))
        except (OSError, ValueError):
            log.debug("prefetch stopped", exc_info=True)  # ALSO

    def next(self):
        return self.batches.get()  # GUILTY


class Bigram(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, idx, targets):
        x = self.emb(idx)
        logits = self.head(x + self.mlp(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


init_process_group(backend="gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1337)
prefetcher = Prefetcher(write_shards(rank))
model = DDP(Bigram())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for iter_num in range(max_iters):
    data = prefetcher.next()  # ALSO
    loss = model(data[:, :-1], data[:, 1:].contiguous())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if rank == 0 and iter_num % 10 == 0:
        log.info("iter %d: loss %.4f", iter_num, loss.item())
destroy_process_group()
