"""Detects tied weights in formats that store both names (torch.distributed.checkpoint).

An alias is a name in no optimizer group with the shape, dtype and values of a trained parameter.
Samples are compared first, then all values if the samples match. Constant tensors are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.ckpt.contents import ITEMSIZE, OptimizerState, Tensor
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable

_SAMPLES, _SAMPLE = 8, 512
#: Minimum elements: smaller tensors (scalars, norm weights) may be equal by chance.
_LEAST_ELEMENTS = 64
_BLOCK = 4 << 20
#: Maximum bytes compared in total.
_MAX_BYTES = 8 << 30


def find_ties(
    root: Path, tensors: Mapping[str, Tensor], optimizer: OptimizerState | None
) -> dict[str, str]:
    """Return aliases with the name of the tensor they share.

    Without optimizer groups, the later name is the alias.
    """
    trained = (
        {name for group in optimizer.groups for name in group.params}
        if optimizer is not None
        else set()
    )
    trained &= set(tensors)
    alike: dict[tuple[str, tuple[int, ...]], list[Tensor]] = {}
    for tensor in tensors.values():
        if tensor.numel >= _LEAST_ELEMENTS and tensor.shards:
            alike.setdefault((tensor.dtype, tensor.shape), []).append(tensor)
    with TensorReader(root) as reader:
        pairs = _TieFinder(reader, trained)
        for candidates in alike.values():
            if len(candidates) > 1:
                pairs.compare_group(candidates)
    return {name: pairs.tied[name] for name in tensors if name in pairs.tied}


class _TieFinder:
    def __init__(self, reader: TensorReader, trained: set[str]) -> None:
        self.reader, self.trained, self.left = reader, trained, _MAX_BYTES
        self.tied: dict[str, str] = {}

    def compare_group(self, candidates: list[Tensor]) -> None:
        """Find ties among tensors of one shape and dtype."""
        firsts: dict[bytes, Tensor] = {}
        second = []
        for tensor in candidates:
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
        """Return sampled values; empty if they cannot be read."""
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
                self._bytes(one, start, step) == self._bytes(other, start, step)
                for start in range(0, one.numel, step)
            )
        except CheckpointUnreadable:
            return False

    def _bytes(self, tensor: Tensor, start: int, step: int) -> bytes:
        return b"".join(
            block.tobytes()
            for block in self.reader.blocks(tensor, start, min(start + step, tensor.numel))
        )
