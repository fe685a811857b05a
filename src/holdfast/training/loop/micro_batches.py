"""Split a batch into micro-batches whose gradients add up to those of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

from holdfast.training.evaluate.batch_sources import count_samples, split_samples


class MicroBatch(NamedTuple):
    """Part of a batch, and its share, by which to multiply its mean loss before ``backward``."""

    data: Any
    weight: float


def split_batch(batch: Any, count: int, model: Any) -> Iterator[MicroBatch]:
    """Yield ``count`` micro-batches; gradients are synchronized in the last one only.

    Fewer if the batch has fewer samples. ``model`` is the one that synchronizes them (DDP, FSDP, a
    DeepSpeed engine), or any other.
    """
    if count <= 1:
        yield MicroBatch(batch, 1.0)
        return
    size = count_samples(batch)
    micro_batches = list(split_samples(batch, size, max(1, -(-size // count))))
    for number, micro_batch in enumerate(micro_batches, start=1):
        with _gradient_sync(model, last=number == len(micro_batches)):
            yield MicroBatch(micro_batch, count_samples(micro_batch) / size if size else 1.0)


def _gradient_sync(model: Any, *, last: bool) -> AbstractContextManager[Any]:
    """Return a context in which ``backward`` synchronizes gradients, or only accumulates."""
    if callable(getattr(model, "set_gradient_accumulation_boundary", None)):  # DeepSpeed
        model.set_gradient_accumulation_boundary(is_boundary=last)
        return nullcontext()
    if callable(getattr(model, "set_requires_gradient_sync", None)):  # FSDP2
        return _fsdp2_sync(model, on=last)
    if not last and callable(getattr(model, "no_sync", None)):  # DDP, FSDP1
        context: AbstractContextManager[Any] = model.no_sync()
        return context
    return nullcontext()


@contextmanager
def _fsdp2_sync(model: Any, *, on: bool) -> Iterator[None]:
    model.set_requires_gradient_sync(on)
    model.set_is_last_backward(on)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_is_last_backward(True)
