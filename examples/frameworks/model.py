"""A small vision-language model, and its task: name the kinds of an image's patches, in order.

The usual structure: a vision model makes a vector per patch, a projector maps them to the width of
a causal language model, which continues in words. Its head is tied to its embedding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

KINDS = 8  # kinds of patches, named by the words 0 to 7
NOISE = 0.3  # standard deviation of the noise per pixel
PATCH = 8  # pixels per side


@dataclass(frozen=True)
class Size:
    """Model size; an image has ``side`` x ``side`` patches, and a text as many words."""

    vision_width: int
    vision_layers: int
    width: int
    layers: int
    words: int
    side: int = 4
    head: int = 64

    @property
    def patches(self) -> int:
        """Return the patches of an image, each described by one word."""
        return self.side**2


#: ``tiny`` is for tests, ``small`` for a CPU, the others for GPUs: 1.1 and 7 billion parameters.
SIZES = {
    "tiny": Size(vision_width=32, vision_layers=1, width=48, layers=2, words=64, side=2, head=16),
    "small": Size(vision_width=192, vision_layers=4, width=384, layers=6, words=2048),
    "base": Size(vision_width=1024, vision_layers=24, width=2048, layers=15, words=32_000, side=16),
    "large": Size(
        vision_width=1024, vision_layers=24, width=4096, layers=32, words=32_000, side=24
    ),
}


class Batch(NamedTuple):
    """Images (batch, 3, pixels, pixels), and the words (batch, patches) that describe them."""

    images: Tensor
    words: Tensor


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a norm."""

    def __init__(self, width: int, head: int, *, causal: bool) -> None:
        super().__init__()
        self.head, self.causal = head, causal
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, width = x.shape
        parts = (
            self.attention(self.norm(x))
            .view(batch, tokens, 3, width // self.head, self.head)
            .unbind(2)
        )
        query, key, value = (part.transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.output(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.feed_norm(x))))


class VisionModel(nn.Module):
    """Map images to a vector per patch; every patch attends to all others."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, size.vision_width, PATCH, stride=PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn(size.patches, size.vision_width))
        self.blocks = nn.ModuleList(
            Block(size.vision_width, size.head, causal=False) for _ in range(size.vision_layers)
        )
        self.norm = nn.LayerNorm(size.vision_width)

    def forward(self, images: Tensor) -> Tensor:
        """Map (batch, 3, pixels, pixels) to (batch, patches, width)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class VisionLanguageModel(nn.Module):
    """Vision model, projector, language model."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.vision = VisionModel(size)
        self.projector = nn.Sequential(
            nn.Linear(size.vision_width, size.width), nn.GELU(), nn.Linear(size.width, size.width)
        )
        self.embedding = nn.Embedding(size.words, size.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = nn.Parameter(0.02 * torch.randn(2 * size.patches, size.width))
        self.blocks = nn.ModuleList(
            Block(size.width, size.head, causal=True) for _ in range(size.layers)
        )
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        """Return scores (batch, patches, words) of each word, from image and previous words."""
        seen = self.projector(self.vision(images))
        x = torch.cat([seen, self.embedding(words[:, :-1])], dim=1)
        x = x + self.positions[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, seen.shape[1] - 1 :]))


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Return nats per word; without the image the minimum is log(8) = 2.08."""
    scores = model(batch.images, batch.words)
    return functional.cross_entropy(scores.flatten(0, 1).float(), batch.words.flatten())


def batch_of(size: Size, samples: int, step: int, rank: int, device: torch.device) -> Batch:
    """Return a rank's batch at a step: the same in every run."""
    patterns = torch.randn(KINDS, 3, PATCH, PATCH, generator=torch.Generator().manual_seed(7))
    drawn = torch.Generator().manual_seed(1_000_003 * step + rank)
    words = torch.randint(KINDS, (samples, size.patches), generator=drawn)
    grid = patterns[words].view(samples, size.side, size.side, 3, PATCH, PATCH)
    images = grid.permute(0, 3, 1, 4, 2, 5).reshape(
        samples, 3, size.side * PATCH, size.side * PATCH
    )
    images = images + NOISE * torch.randn(images.shape, generator=drawn)
    return Batch(images.to(device), words.to(device))
