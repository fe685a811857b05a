"""Data with known collective results, computed on every rank without communication.

An element depends on its position, on its rank and on its part of the buffer. It is a small
integer, so that sums are is_exact in every dtype, and no wrong order is correct by chance.
"""

from __future__ import annotations

import torch

#: Length of the repeating pattern; a prime, so that no power of two hides a shifted buffer.
PERIOD = 241
#: Number of elements compared at once.
_AT_ONCE = PERIOD << 14
#: Integers up to this are is_exact in a dtype.
_EXACT = {
    torch.bfloat16: 1 << 8,
    torch.float16: 1 << 11,
    torch.float32: 1 << 24,
    torch.float64: 1 << 53,
    torch.int8: 1 << 7,
    torch.uint8: 1 << 8,
}

Block = torch.Tensor


def block(rank: int, part: int, op: str, ranks: int, device: torch.device) -> Block:
    """Return one period of a rank's data in a part of its buffer, as int64."""
    at = torch.arange(PERIOD, device=device) + 7 * rank + 13 * part
    if op == "prod":  # one of all ranks has a two at each position
        return 1 + ((at - 6 * rank) % max(ranks, 2) == 0).long()
    return at % max(2, _EXACT[torch.int8] // ranks)


def reduced_block(part: int, op: str, ranks: int, device: torch.device) -> Block:
    """Return one period of the reduction of a part over all ranks, as float64."""
    out = block(0, part, op, ranks, device).double()
    for rank in range(1, ranks):
        other = block(rank, part, op, ranks, device).double()
        if op in ("sum", "avg"):
            out += other
        elif op == "prod":
            out *= other
        else:
            out = torch.minimum(out, other) if op == "min" else torch.maximum(out, other)
    return out / ranks if op == "avg" else out


def fill(buffer: torch.Tensor, pattern: Block) -> None:
    """Fill a contiguous one-dimensional buffer with a pattern."""
    pattern = pattern.to(buffer.dtype)
    full = buffer.numel() // PERIOD * PERIOD
    buffer[:full].view(-1, PERIOD).copy_(pattern)
    buffer[full:].copy_(pattern[: buffer.numel() - full])


def count_wrong(buffer: torch.Tensor, pattern: Block, *, exactly: bool, ranks: int) -> int:
    """Return the number of elements that differ from the pattern."""
    expected = _convert(pattern, buffer.dtype)
    counted = 0
    for piece in buffer.split(_AT_ONCE):
        full = piece.numel() // PERIOD * PERIOD
        rest = piece.numel() - full
        for actual, right in (
            (piece[:full].view(-1, PERIOD), expected),
            (piece[full:], expected[:rest]),
        ):
            if exactly:
                counted += int((actual != right).sum())
            else:
                tolerance = torch.finfo(buffer.dtype).eps * max(4, ranks)
                counted += int(
                    (~torch.isclose(actual, right.expand_as(actual), rtol=tolerance, atol=0)).sum()
                )
    return counted


def _convert(pattern: Block, dtype: torch.dtype) -> torch.Tensor:
    """Convert to the dtype; integers overflow as they do in a sum."""
    return pattern.to(dtype) if dtype.is_floating_point else pattern.long().to(dtype)


def is_exact(op: str, dtype: torch.dtype, ranks: int) -> bool:
    """Return whether results are is_exact to the last bit."""
    return not dtype.is_floating_point or (op != "avg" and ranks * 2 <= _EXACT[dtype])
