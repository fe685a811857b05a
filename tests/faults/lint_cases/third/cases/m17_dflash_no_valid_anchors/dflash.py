import torch
from torch import nn


class NoValidAnchorsError(ValueError):
    """Raised when every sample of a micro-batch is too short to form a block."""


class DraftModel(nn.Module):
    def __init__(self, vocab=32000, dim=256, block_size=8):
        super().__init__()
        self.block_size = block_size
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.TransformerEncoderLayer(dim, 4, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, context, hidden):
        x = self.embed(context) + hidden
        return self.head(self.mix(x))


def sample_anchors(lengths, block_size, generator=None):
    """Picks one anchor position in every sample that is long enough."""
    valid = lengths > block_size + 1
    if not valid.any():
        raise NoValidAnchorsError("no sample is long enough to form a block")
    rows = valid.nonzero().squeeze(1)
    anchors = (torch.rand(len(rows), generator=generator) * (lengths[rows] - block_size - 1)).long()
    return rows, anchors
