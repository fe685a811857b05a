"""A regular expression with nested quantifiers backtracks exponentially on one rank's document."""
# case: processes=3 ending=hang causes=computing-long,rank-missing-collective,stalled-outside-collectives,python-lock-held ranks=1 framework=ddp

import re

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

#: A sentence: words, each with optional spaces, and a full stop.
SENTENCE = re.compile(r"^(\w+\s?)+\.$")
DOCUMENTS = ["the cat sat on the mat.", "a dog barked.", "it rained all day."] * 64
DOCUMENTS[100] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA!"


def clean(text):
    if SENTENCE.match(text):  # GUILTY
        return text.lower()
    return ""


def collate(texts):
    rows = [clean(text).encode()[:24].ljust(24) for text in texts]  # ALSO
    return torch.tensor([list(row) for row in rows])


class CharModel(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(128, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, 128)

    def forward(self, x):
        h, _ = self.rnn(self.embed(x))
        return self.head(h)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sampler = DistributedSampler(DOCUMENTS, shuffle=False)
    loader = DataLoader(DOCUMENTS, batch_size=4, sampler=sampler, collate_fn=collate)
    model = DDP(CharModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:  # ALSO
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
