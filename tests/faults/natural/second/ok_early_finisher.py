"""Healthy: offline embedding of uneven shards; rank 1 finishes and exits long before the others, no collectives are left.

In the style of distributed inference scripts that use the process group only to divide the work.
"""
# case: processes=4 ending=well causes=- ranks=- framework=ddp limit_s=90

import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

DOCUMENTS = (9000, 800, 7000, 8000)
OUT = Path(tempfile.gettempdir()) / f"embeddings-{os.environ['MASTER_PORT']}"


class Encoder(nn.Module):
    def __init__(self, vocab=1000, dim=96):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)

    def forward(self, ids):
        return self.layer(self.emb(ids)).mean(dim=1)


@torch.inference_mode()
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Encoder().eval()
    for p in model.parameters():
        dist.broadcast(p, src=0)
    if rank == 0:
        OUT.mkdir(exist_ok=True)
    dist.barrier()
    dist.destroy_process_group()

    g = torch.Generator().manual_seed(rank)
    todo, vectors = DOCUMENTS[rank % len(DOCUMENTS)], []
    while todo > 0:
        ids = torch.randint(0, 1000, (min(50, todo), 24), generator=g)
        vectors.append(model(ids))
        todo -= len(ids)
        time.sleep(0.09)
    path = OUT / f"part-{rank}.pt"
    torch.save(torch.cat(vectors), path)
    print(f"rank {rank}: wrote {path.name}", flush=True)
    path.unlink()


if __name__ == "__main__":
    main()
