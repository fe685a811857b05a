"""Healthy: one rank has three times as long sequences as the others, so that they wait for it in every step."""
# case: processes=3 ending=well framework=ddp

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

LENGTHS = [40, 40, 120]  # tokens per sample of each rank's language


class Tagger(nn.Module):
    def __init__(self, vocab=200, dim=64, tags=12):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * dim, tags)

    def forward(self, x):
        return self.head(self.rnn(self.embed(x))[0])


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    model = DDP(Tagger())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    length = LENGTHS[rank % len(LENGTHS)]
    for step in range(120):
        words = torch.randint(0, 200, (32, length))
        loss = nn.functional.cross_entropy(model(words).flatten(0, 1), (words % 12).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
