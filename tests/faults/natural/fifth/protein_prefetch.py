"""The thread that fills the prefetch queue of one rank dies of an exception, and the training loop waits for the queue forever.

Modelled on RadarML/red-rover#23 (Prefetch hangs if the iterator raises) and Synthefy/synthefy-nori#159.
"""
# case: processes=4 ending=hang causes=stalled-outside-collectives,python-exception-on-one-rank,dataloader-worker-died,python-lock-held,rank-missing-collective ranks=2 framework=torch.distributed

import queue
import threading

import torch
import torch.distributed as dist
from torch import nn

ACIDS = "ACDEFGHIKLMNPQRSTVWY"
INDEX = {acid: i for i, acid in enumerate(ACIDS)}
LENGTH = 24


def read_fasta(rank):
    """Yield one sequence after another; a few records of UniRef contain ambiguous residues."""
    g = torch.Generator().manual_seed(rank)
    for record in range(2000):
        picks = torch.randint(0, len(ACIDS), (LENGTH,), generator=g).tolist()
        sequence = "".join(ACIDS[i] for i in picks)
        if rank == 2 and record == 333:
            sequence = sequence[:9] + "B" + sequence[10:]
        yield sequence


class Prefetcher:
    def __init__(self, sequences, batch_size=16, depth=4):
        self.sequences = sequences
        self.batch_size = batch_size
        self.queue = queue.Queue(depth)
        self.thread = threading.Thread(target=self._fill, daemon=True)
        self.thread.start()

    def _fill(self):
        batch = []
        for sequence in self.sequences:
            batch.append([INDEX[acid] for acid in sequence])  # GUILTY
            if len(batch) == self.batch_size:
                self.queue.put(torch.tensor(batch))
                batch = []
        self.queue.put(None)

    def __iter__(self):
        while (batch := self.queue.get()) is not None:  # ALSO
            yield batch


class MaskedModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(len(ACIDS) + 1, 32)
        self.conv = nn.Conv1d(32, 32, 5, padding=2)
        self.out = nn.Linear(32, len(ACIDS))

    def forward(self, tokens):
        return self.out(torch.relu(self.conv(self.emb(tokens).transpose(1, 2))).transpose(1, 2))


def average_gradients(model, world):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= world


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = MaskedModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(Prefetcher(read_fasta(rank))):  # ALSO
        mask = torch.rand(tokens.shape) < 0.15
        loss = nn.functional.cross_entropy(model(tokens.masked_fill(mask, len(ACIDS)))[mask], tokens[mask])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, world)
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
