"""Data of which every rank can work out what a collective has to make of it, without any communication.

An element depends on its place, on the rank that gives it, and on the part that it is in, and is a small whole number,
so that sums of it are exact in every dtype and no order of adding up is right by chance alone.
"""

from __future__ import annotations

import torch

#: Elements after which the pattern begins anew; a prime, so that no power of two hides a shifted buffer.
PERIOD = 241
#: Elements that are compared at once.
_AT_ONCE = PERIOD << 14
#: Whole numbers up to this are exact in a dtype.
_EXACT = {torch.bfloat16: 1 << 8, torch.float16: 1 << 11, torch.float32: 1 << 24, torch.float64: 1 << 53,
          torch.int8: 1 << 7, torch.uint8: 1 << 8}  # fmt: skip

Block = torch.Tensor


def block(rank: int, part: int, op: str, ranks: int, device: torch.device) -> Block:
    """One period of what a rank gives in a part of its buffer, as int64."""
    at = torch.arange(PERIOD, device=device) + 7 * rank + 13 * part
    if op == "prod":  # one rank of all has a two at each place
        return 1 + ((at - 6 * rank) % max(ranks, 2) == 0).long()
    return at % max(2, _EXACT[torch.int8] // ranks)


def reduced(part: int, op: str, ranks: int, device: torch.device) -> Block:
    """One period of what reducing a part over all ranks has to give, as float64."""
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
    """Write a pattern into a contiguous buffer of one axis, from its beginning."""
    pattern = pattern.to(buffer.dtype)
    whole = buffer.numel() // PERIOD * PERIOD
    buffer[:whole].view(-1, PERIOD).copy_(pattern)
    buffer[whole:].copy_(pattern[: buffer.numel() - whole])


def wrong_in(buffer: torch.Tensor, pattern: Block, *, exactly: bool, ranks: int) -> int:
    """How many elements are not what the pattern says."""
    wanted = _wrapped(pattern, buffer.dtype)
    counted = 0
    for piece in buffer.split(_AT_ONCE):
        whole = piece.numel() // PERIOD * PERIOD
        rest = piece.numel() - whole
        for given, right in ((piece[:whole].view(-1, PERIOD), wanted), (piece[whole:], wanted[:rest])):
            if exactly:
                counted += int((given != right).sum())
            else:
                tolerance = torch.finfo(buffer.dtype).eps * max(4, ranks)
                counted += int((~torch.isclose(given, right.expand_as(given), rtol=tolerance, atol=0)).sum())
    return counted


def _wrapped(pattern: Block, dtype: torch.dtype) -> torch.Tensor:
    """The numbers as the dtype holds them; whole ones overflow as they do when they are added up."""
    return pattern.to(dtype) if dtype.is_floating_point else pattern.long().to(dtype)


def exact(op: str, dtype: torch.dtype, ranks: int) -> bool:
    """Whether results are known to the last bit."""
    return not dtype.is_floating_point or (op != "avg" and ranks * 2 <= _EXACT[dtype])
