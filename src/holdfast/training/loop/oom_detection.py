"""Classify out-of-memory exceptions: device or host memory."""

from __future__ import annotations

from collections.abc import Iterator

#: Messages of torch's allocator and CUDA libraries; for the CPU, of DefaultCPUAllocator.
_DEVICE_TEXTS = (
    "CUDA out of memory",
    "HIP out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "NCCL Error 1: unhandled cuda error: out of memory",
)
_HOST_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
)


def classify_oom(error: BaseException) -> str:
    """Return ``device`` or ``host`` if the exception chain is an out-of-memory error, else ""."""
    for link in _exception_chain(error):
        text = str(link)
        if type(link).__name__ == "OutOfMemoryError" or any(
            text_part in text for text_part in _DEVICE_TEXTS
        ):
            return "device"
        if isinstance(link, MemoryError) or any(text_part in text for text_part in _HOST_TEXTS):
            return "host"
    return ""


def _exception_chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(16):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
