"""A batch worked through in pieces whose gradients add up to those of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from holdfast.runtime.evaluate.batches import cut, size_of


class Part(NamedTuple):
    """A piece of a batch, and its share of the batch: what its mean loss is multiplied by before ``backward``."""

    data: Any
    weight: float


def parts(batch: Any, count: int, model: Any) -> Iterator[Part]:
    """``count`` pieces (fewer where the batch has fewer samples). Gradients are exchanged in the last one alone.

    ``model`` is one that exchanges them (DDP, FSDP, DeepSpeed's engine), or anything else.
    """
    if count <= 1:
        yield Part(batch, 1.0)
        return
    size = size_of(batch)
    pieces = list(cut(batch, size, max(1, -(-size // count))))
    for number, piece in enumerate(pieces, start=1):
        with _exchange(model, last=number == len(pieces)):
            yield Part(piece, size_of(piece) / size if size else 1.0)


def _exchange(model: Any, *, last: bool) -> AbstractContextManager[Any]:
    """What makes ``backward`` inside of it exchange gradients between the ranks, or only add them up."""
    if callable(getattr(model, "set_gradient_accumulation_boundary", None)):  # DeepSpeed
        model.set_gradient_accumulation_boundary(is_boundary=last)
        return nullcontext()
    if callable(getattr(model, "set_requires_gradient_sync", None)):  # FSDP2
        return _switched(model, on=last)
    if not last and callable(getattr(model, "no_sync", None)):  # DDP, FSDP1
        found: AbstractContextManager[Any] = model.no_sync()
        return found
    return nullcontext()


@contextmanager
def _switched(model: Any, *, on: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(on)
    model.set_is_last_backward(on)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_is_last_backward(True)
