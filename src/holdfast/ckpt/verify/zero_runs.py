"""Locates runs of zeros inside tensors: pages that a disk or file system lost, and zero rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.ckpt.contents import ITEMSIZE, Tensor
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify.file_pass import ValueSpan
from holdfast.ckpt.verify.values import PAGE_BYTES
from holdfast.core.errors import CheckpointUnreadable

#: Runs located per checkpoint; bytes read at once where a run continues.
_MAX_RUNS, _EXTENT_BYTES = 256, 1 << 20
#: Longer runs are not reported: moments of an embedding have gigabytes of zeros.
_MAX_RUN_BYTES = 64 << 20
#: A vector consists of at most this many parts, one of which may be zero.
_MAX_PARTS = 4
#: Pruning and initialization set whole blocks of this many elements, or of a multiple.
_BLOCK = 64


class ZeroRun(msgspec.Struct, frozen=True, kw_only=True):
    """Zeros from byte ``start`` to ``stop`` of a file, in the tensor of section and name ``key``.

    ``whole_rows``: it starts and ends with a row of a tensor of two dimensions or more.
    ``whole_blocks``: it starts and ends at a multiple of 64 elements of the tensor. ``at_end``: it
    contains the first or last element of the shard.
    """

    key: tuple[str, str]
    file: str
    start: int
    stop: int
    whole_rows: bool
    whole_blocks: bool
    at_end: bool

    @property
    def whole_pages(self) -> bool:
        """Return whether it starts and ends with a page: chance makes that one in a million."""
        return not (self.start % PAGE_BYTES or self.stop % PAGE_BYTES)


def find_zero_runs(
    tensors: Mapping[tuple[str, str], Tensor],
    spans: Iterable[ValueSpan],
    reader: TensorReader,
) -> tuple[ZeroRun, ...]:
    """Return the runs with a page of zeros in shards that are not all zeros."""
    runs: list[ZeroRun] = []
    for span in spans:
        if span.complete and span.counts.zero_pages and span.counts.other:
            try:
                runs += _runs_of(span, tensors[span.key[:2]], reader)
            except CheckpointUnreadable:  # reported as a broken file
                continue
        if len(runs) >= _MAX_RUNS:
            break
    return tuple(runs[:_MAX_RUNS])


def _runs_of(span: ValueSpan, tensor: Tensor, reader: TensorReader) -> Iterator[ZeroRun]:
    size = ITEMSIZE[tensor.dtype]
    shard = tensor.shards[span.key[2]]
    shape = tensor.shape if shard.flat else shard.shape
    row = math.prod(shape[1:]) * size
    base = shard.start[0] * size if shard.flat else 0
    stop = 0
    for first, last in _merge(span.counts.zero_pages):
        if first < stop:  # a page that was read in two parts is not recorded
            continue
        start, stop = _extend(span, size, first, last, reader)
        if stop - start > _MAX_RUN_BYTES:
            continue
        if len(shape) == 1 and _MAX_PARTS * (stop - start) >= span.stop - span.start:
            continue  # the part of the keys in a joint bias
        ends = (span.start, span.stop)
        inner = [base + at - span.start for at in (start, stop) if at not in ends]
        yield ZeroRun(
            key=span.key[:2],
            file=span.file,
            start=start,
            stop=stop,
            whole_rows=len(shape) > 1 and all(at % row == 0 for at in inner),
            whole_blocks=all(at % (_BLOCK * size) == 0 for at in inner),
            at_end=len(inner) < 2,
        )


def _merge(pages: Iterable[int]) -> list[tuple[int, int]]:
    """Return start and stop of consecutive pages."""
    runs: list[tuple[int, int]] = []
    for at in pages:
        if runs and runs[-1][1] == at:
            runs[-1] = (runs[-1][0], at + PAGE_BYTES)
        else:
            runs.append((at, at + PAGE_BYTES))
    return runs


def _extend(
    span: ValueSpan, size: int, first: int, last: int, reader: TensorReader
) -> tuple[int, int]:
    """Return where the zeros around the pages start and stop, in whole elements."""
    start, stop = _start_of_zeros(span, first, reader), _end_of_zeros(span, last, reader)
    return (
        span.start - (span.start - start) // size * size,
        span.start + (stop - span.start) // size * size,
    )


def _start_of_zeros(span: ValueSpan, at: int, reader: TensorReader) -> int:
    """Return the first zero byte of those before ``at``."""
    while at > span.start:
        data = _bytes(reader, span.file, max(span.start, at - PAGE_BYTES), at)
        zeros = len(data) - len(data.rstrip(b"\0"))
        at -= zeros
        if zeros < len(data):
            break
    return at


def _end_of_zeros(span: ValueSpan, at: int, reader: TensorReader) -> int:
    """Return the first byte from ``at`` on that is not zero; not all pages are recorded."""
    size, limit = PAGE_BYTES, at + _MAX_RUN_BYTES
    while at < min(span.stop, limit + 1):
        data = _bytes(reader, span.file, at, min(span.stop, at + size))
        zeros = len(data) - len(data.lstrip(b"\0"))
        at += zeros
        if zeros < len(data):
            break
        size = _EXTENT_BYTES
    return at


def _bytes(reader: TensorReader, file: str, start: int, stop: int) -> bytes:
    return b"".join(block.tobytes() for block in reader.read_bytes(file, start, stop - start))
