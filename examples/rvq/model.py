"""A residual vector quantizer between a convolutional encoder and decoder.

Each step of a sequence is encoded into one vector, which is replaced by a sum of N code vectors:
the first codebook selects the nearest code, the second the nearest to the residual, and so on. The
codebooks are not trained by gradients: they follow the moving averages of the vectors that selected
them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from holdfast import comm

DECAY = 0.97  # decay of the moving averages per step
DEAD_BELOW = 0.1  # a code used less often than this fraction of the average is restarted


class Quantized(NamedTuple):
    """Codes of a batch; ``residuals`` (N, vectors, D) are the targets of each codebook."""

    vectors: Tensor
    codes: Tensor
    residuals: Tensor


class Reconstruction(NamedTuple):
    """A reconstructed batch, and its commitment loss."""

    rows: Tensor
    commitment: Tensor
    codes: Tensor
    residuals: Tensor


class ResidualQuantizer(nn.Module):
    """N codebooks of K codes of D numbers, kept identical on all ranks by all-reduce."""

    codebooks: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, codebooks: int, codes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("codebooks", torch.zeros(codebooks, codes, width))
        self.register_buffer("counts", torch.zeros(codebooks, codes))
        self.register_buffer("sums", torch.zeros(codebooks, codes, width))

    def forward(self, latents: Tensor) -> Quantized:
        """Replace vectors (batch, rows, D) by sums of codes (straight-through gradient)."""
        rest = latents.detach().reshape(-1, latents.shape[-1])
        codes, residuals = [], []
        for codebook in self.codebooks:
            chosen = torch.cdist(rest, codebook).argmin(dim=1)
            codes.append(chosen)
            residuals.append(rest)
            rest = rest - codebook[chosen]
        quantized = latents - rest.view_as(latents)
        return Quantized(quantized, torch.stack(codes), torch.stack(residuals))

    @torch.no_grad()
    def update(self, codes: Tensor, residuals: Tensor) -> None:
        """Move the codebooks towards the vectors that selected them; call it on every rank."""
        count, total, spare = self._reduced(codes, residuals)
        self.counts.lerp_(count, 1 - DECAY)
        self.sums.lerp_(total, 1 - DECAY)
        average = self.counts.mean(dim=1, keepdim=True)
        dead = self.counts < DEAD_BELOW * average
        self.counts.copy_(torch.where(dead, average, self.counts))
        self.sums.copy_(torch.where(dead[..., None], spare * average[..., None], self.sums))
        self.codebooks.copy_(self.sums / self.counts[..., None])

    def _reduced(self, codes: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return code counts, sums of their vectors, and restart vectors, reduced over all ranks.

        The restart vectors must be the same everywhere, so each rank provides those of its own
        share of the codes and zeros for the others: one all-reduce carries all three. It has a time
        limit and names the missing ranks; as one call of the backend, it has the same bits in every
        run.
        """
        books, size, width = self.codebooks.shape
        chosen = functional.one_hot(codes, size).to(residuals.dtype)
        pick = torch.randint(residuals.shape[1], (books, size), device=residuals.device)
        offer = torch.gather(residuals, 1, pick[..., None].expand(-1, -1, width))
        mine = torch.arange(size, device=offer.device) % dist.get_world_size() == dist.get_rank()
        packed = torch.cat(
            [
                chosen.sum(dim=1)[..., None],
                chosen.transpose(1, 2) @ residuals,
                offer * mine[:, None],
            ],
            dim=2,
        )
        comm.all_reduce(packed, chunk=None)
        return packed[..., 0], packed[..., 1 : 1 + width], packed[..., 1 + width :]


class Autoencoder(nn.Module):
    """Encode rows of pixels to codes and decode them, for sequences of any length."""

    def __init__(
        self,
        columns: int,
        *,
        hidden: int = 64,
        width: int = 16,
        codebooks: int = 4,
        codes: int = 64,
    ) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(columns, hidden, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(hidden, width, 3, padding=1),
        )
        self.quantizer = ResidualQuantizer(codebooks, codes, width)
        self.decoder = nn.Sequential(
            nn.Conv1d(width, hidden, 3, padding=1),
            nn.GELU(),
            nn.Conv1d(hidden, columns, 3, padding=1),
        )

    def forward(self, rows: Tensor) -> Reconstruction:
        """Encode, quantize and decode (batch, rows, columns)."""
        latents = self.encoder(rows.transpose(1, 2)).transpose(1, 2)
        quantized = self.quantizer(latents)
        decoded = self.decoder(quantized.vectors.transpose(1, 2)).transpose(1, 2)
        commitment = functional.mse_loss(latents, quantized.vectors.detach())
        return Reconstruction(decoded, commitment, quantized.codes, quantized.residuals)
