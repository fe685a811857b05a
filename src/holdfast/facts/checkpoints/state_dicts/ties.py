"""Which names stand for the same weight, in formats that do not say so: torch.distributed.checkpoint writes both.

A second name is one that no group of the optimizer has, of the shape and dtype of one that a group has, with the same
numbers. Samples are compared first, and all of the numbers where those are alike. What does not vary is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import ITEMSIZE, Optimizer, Tensor
from holdfast.facts.checkpoints.pieces import Reader

_SAMPLES, _SAMPLE = 8, 512
#: Of so many elements at least: a single number, or a norm's weights, may well be the same by chance.
_LEAST_ELEMENTS = 64
_BLOCK = 4 << 20
#: So much is compared in all.
_MOST_BYTES = 8 << 30


def found(root: Path, tensors: Mapping[str, Tensor], optimizer: Optimizer | None) -> dict[str, str]:
    """Second names, each with the name whose tensor it stands for.

    Without groups of an optimizer the second name is the later one.
    """
    trained = {name for group in optimizer.groups for name in group.params} if optimizer is not None else set()
    trained &= set(tensors)
    alike: dict[tuple[str, tuple[int, ...]], list[Tensor]] = {}
    for tensor in tensors.values():
        if tensor.numel >= _LEAST_ELEMENTS and tensor.pieces:
            alike.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
    with Reader(root) as reader:
        pairs = _Pairs(reader, trained)
        for several in alike.values():
            if len(several) > 1:
                pairs.look(several)
    return {name: pairs.tied[name] for name in tensors if name in pairs.tied}


class _Pairs:
    def __init__(self, reader: Reader, trained: set[str]) -> None:
        self.reader, self.trained, self.left = reader, trained, _MOST_BYTES
        self.tied: dict[str, str] = {}

    def look(self, several: list[Tensor]) -> None:
        """Find the pairs among tensors of one shape and dtype."""
        firsts: dict[bytes, Tensor] = {}
        second = []
        for tensor in several:
            if not self.trained or tensor.name in self.trained:
                known = firsts.setdefault(self._sample(tensor), tensor)
                second += [tensor] if known is not tensor and not self.trained else []
            else:
                second.append(tensor)
        for tensor in second:
            sample = self._sample(tensor)
            first = firsts.get(sample)
            if first is not None and len(set(sample)) > 1 and self._same(first, tensor):
                self.tied[tensor.name] = first.name

    def _sample(self, tensor: Tensor) -> bytes:
        """Some of its numbers; nothing where they cannot be read."""
        last = max(tensor.numel - _SAMPLE, 0)
        starts = sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)})
        try:
            return b"".join(self._bytes(tensor, start, _SAMPLE) for start in starts)
        except CheckpointUnreadable:
            return b""

    def _same(self, one: Tensor, other: Tensor) -> bool:
        self.left -= 2 * one.size
        if self.left < 0:
            return False
        step = _BLOCK // ITEMSIZE[one.dtype]
        try:
            return all(
                self._bytes(one, start, step) == self._bytes(other, start, step) for start in range(0, one.numel, step)
            )
        except CheckpointUnreadable:
            return False

    def _bytes(self, tensor: Tensor, start: int, step: int) -> bytes:
        return b"".join(block.tobytes() for block in self.reader.blocks(tensor, start, min(start + step, tensor.numel)))
