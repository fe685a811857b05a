import json

import torch
from torch import nn
from torch.utils.data import Dataset

IGNORE = -100


class DomainExpert(nn.Module):
    """Draft head of one domain, trained on hidden states of a frozen language model."""

    def __init__(self, hidden, vocab):
        super().__init__()
        self.proj = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.LayerNorm(hidden))
        self.head = nn.Linear(hidden, vocab, bias=False)

    def forward(self, states):
        return self.head(self.proj(states))


class DomainDump(Dataset):
    """Dumped hidden states; labels of other domains are masked out."""

    def __init__(self, folder, domain):
        with open(f"{folder}/index.json") as fp:
            self.names = json.load(fp)
        self.folder = folder
        self.domain = domain

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        item = torch.load(f"{self.folder}/{self.names[i]}")
        labels = item["labels"].clone()
        labels[item["domains"] != self.domain] = IGNORE
        return item["states"], labels
