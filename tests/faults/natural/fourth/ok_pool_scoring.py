"""Healthy: rank 0 scores the transcripts in a multiprocessing pool for about 15 s, and recycles its workers, while the others wait.

In the style of speech recipes that compute edit distances with a process pool; each worker ends after two tasks and is replaced.
"""
# case: processes=3 ending=well causes=- ranks=- framework=ddp limit_s=120

import multiprocessing
import random
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ALPHABET = "abcdefghij"


def edit_distance(pair):
    """Levenshtein distance; slow on purpose, as a pure Python implementation is."""
    reference, hypothesis = pair
    row = list(range(len(hypothesis) + 1))
    for i, a in enumerate(reference, start=1):
        previous, row[0] = row[0], i
        for j, b in enumerate(hypothesis, start=1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (a != b))
    time.sleep(2.4)
    return row[-1] / len(reference)


def transcripts(epoch, count=12):
    g = random.Random(epoch)
    for _ in range(count):
        reference = "".join(g.choices(ALPHABET, k=120))
        yield reference, "".join(c if g.random() > 0.2 else g.choice(ALPHABET) for c in reference)


def error_rate(epoch):
    context = multiprocessing.get_context("fork")
    with context.Pool(2, maxtasksperchild=2) as pool:
        distances = pool.map(edit_distance, list(transcripts(epoch)), chunksize=1)
        pool.close()
        pool.join()
    return sum(distances) / len(distances)


class AcousticModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv1d(20, 32, 5, padding=2), nn.ReLU(), nn.Conv1d(32, 11, 1))

    def forward(self, mel):
        return self.net(mel).log_softmax(1).permute(2, 0, 1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(AcousticModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    ctc = nn.CTCLoss()
    torch.manual_seed(rank)
    for epoch in range(2):
        for _ in range(12):
            log_probs = model(torch.randn(4, 20, 40))
            targets = torch.randint(1, 11, (4, 8))
            loss = ctc(log_probs, targets, torch.full((4,), 40), torch.full((4,), 8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} error rate {error_rate(epoch):.3f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
