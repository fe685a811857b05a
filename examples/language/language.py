"""The task of the four trainers: an artificial language, a small transformer, and its metrics.

Each of 16 letters is followed by one of four others, with unequal frequencies. An untrained model
has a loss of ln 16 = 2.77 nats per letter; the minimum is the language's entropy, about 1.1.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LETTERS = 16
FOLLOWERS = (0.55, 0.25, 0.15, 0.05)  # how often each of a letter's four followers comes
#: Held-out texts: name -> (texts, letters of each). Shares of two ranks are uneven in texts and
#: batches.
HELD_OUT = {"short": (161, 24), "long": (65, 48)}
WIDTH, HEADS = 32, 4


class Texts(Dataset[Tensor]):
    """Texts of the language, each (length,) int64; the same seed gives the same on every rank."""

    def __init__(self, number: int, length: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(0)
        followers = torch.stack(
            [torch.randperm(LETTERS, generator=draw)[: len(FOLLOWERS)] for _ in range(LETTERS)]
        )
        draw.manual_seed(seed)
        letters = [torch.randint(LETTERS, (number,), generator=draw)]
        for _ in range(length - 1):
            chosen = torch.multinomial(
                torch.tensor(FOLLOWERS), number, replacement=True, generator=draw
            )
            letters.append(followers[letters[-1], chosen])
        self.texts = torch.stack(letters, dim=1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return self.texts[index]


def training_texts(steps: int, batch_size: int, seed: int) -> Texts:
    """Return enough texts for this many steps in one epoch."""
    return Texts(steps * batch_size * dist.get_world_size(), length=24, seed=1000 + seed)


def training_batches(steps: int, batch_size: int, seed: int) -> DataLoader[Tensor]:
    """Return this rank's training batches: ``steps`` of (batch_size, 24)."""
    texts = training_texts(steps, batch_size, seed)
    return DataLoader(texts, batch_size, sampler=DistributedSampler(texts, seed=seed))


def held_out(batch_size: int) -> dict[str, DataLoader[Tensor]]:
    """Return this rank's share of each held-out set; each text is in exactly one share.

    A DistributedSampler would repeat some texts to make shares even, and a metric would count them
    twice.
    """
    sets = {name: Texts(number, length, seed=1) for name, (number, length) in HELD_OUT.items()}
    return {
        name: DataLoader(
            torch.utils.data.Subset(
                texts, range(dist.get_rank(), len(texts), dist.get_world_size())
            ),
            batch_size,
        )
        for name, texts in sets.items()
    }


class Block(nn.Module):
    """One causal transformer layer: attention, then two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mixing = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mix = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, WIDTH) in and out."""
        parts = self.query_key_value(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        result: Tensor = x + self.mix(self.before_mixing(x))
        return result


class LanguageModel(nn.Module):
    """Two layers between an embedding and the scores of the next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, letters: Tensor) -> Tensor:
        """(batch, length) letters -> (batch, length, LETTERS) scores of what comes next."""
        x = self.embed(letters)
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x)
        return scores


def next_letter_loss(model: nn.Module, texts: Tensor) -> Tensor:
    """Return the mean loss of a letter given those before it, in nats."""
    return functional.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())


def count(model: nn.Module, texts: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Return the evaluation counts of one batch: metric -> (sum, number of letters).

    Sums and counts may be added over batches, datasets and ranks of any size; averages may not.
    """
    scores, wanted = model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten()
    return {
        "loss": (functional.cross_entropy(scores, wanted, reduction="sum"), wanted.numel()),
        "accuracy": ((scores.argmax(dim=-1) == wanted).sum(), wanted.numel()),
    }
