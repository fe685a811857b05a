"""Each rank builds its vocabulary from its own shard, so the embedding has another size on one rank."""
# case: processes=3 ending=crash causes=mismatched-shape,collective-mismatch,python-exception-on-one-rank,python-exception-all-ranks ranks=2 framework=ddp

from collections import Counter

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

LINES = [
    "the quick brown fox jumps over the lazy dog",
    "the lazy dog jumps over the quick brown fox",
    "the quick dog sleeps and the brown fox sleeps",
]


class Vocabulary:
    def __init__(self, lines, min_freq=1):
        counts = Counter(word for line in lines for word in line.split())
        words = sorted(word for word, n in counts.items() if n >= min_freq)
        self.stoi = {word: i for i, word in enumerate(["<unk>", *words])}

    def __len__(self):
        return len(self.stoi)

    def encode(self, line):
        return torch.tensor([self.stoi.get(word, 0) for word in line.split()])


class LSTMLanguageModel(nn.Module):
    def __init__(self, vocab_size, dim=16):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.fc = nn.Linear(dim, vocab_size)

    def forward(self, x):
        out, _ = self.lstm(self.embedding(x))
        return self.fc(out)


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shard = LINES[rank::world_size]
    vocab = Vocabulary(shard)  # ALSO
    tokens = vocab.encode(shard[0])[None]
    model = DDP(LSTMLanguageModel(len(vocab)))  # GUILTY
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(30):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} perplexity {loss.exp().item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
