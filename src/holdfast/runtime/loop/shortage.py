"""Recognises the exceptions of memory that ran out, of the device's or of the host's."""

from __future__ import annotations

from collections.abc import Iterator

#: What torch's allocator and CUDA's libraries say. The CPU allocator's words are of DefaultCPUAllocator.
_DEVICE = ("CUDA out of memory", "HIP out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
           "CUDNN_STATUS_ALLOC_FAILED", "NCCL Error 1: unhandled cuda error: out of memory")  # fmt: skip
_HOST = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory",
         "Cannot allocate memory")  # fmt: skip


def of(error: BaseException) -> str:
    """``device``, ``host``, or nothing where the error (and what it was raised from) tells of no shortage."""
    for each in _chain(error):
        text = str(each)
        if type(each).__name__ == "OutOfMemoryError" or any(words in text for words in _DEVICE):
            return "device"
        if isinstance(each, MemoryError) or any(words in text for words in _HOST):
            return "host"
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(16):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
