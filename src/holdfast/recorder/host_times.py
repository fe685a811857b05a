"""Measures the time that a rank spends in its data loader and in garbage collection.

Two clock reads per batch and per collection; the totals are in the trace file. A rank that others
wait for is slow for one of these reasons, or for another.
"""

from __future__ import annotations

import functools
import gc
import os
import time
from typing import Any

from holdfast.core import trace_file
from holdfast.core.trace_file import TraceWriter


def measure_collections(trace: TraceWriter) -> None:
    """Measure garbage collection from now on."""
    began, owner = 0, os.getpid()  # a forked child shares the trace file

    def on_collection(when: str, _: dict[str, int]) -> None:
        nonlocal began
        if when == "start":
            began = time.monotonic_ns()
        elif began and os.getpid() == owner:
            trace.add_time(trace_file.COLLECTOR, time.monotonic_ns() - began)

    gc.callbacks.append(on_collection)


def measure_loaders(trace: TraceWriter) -> None:
    """Measure torch's data loaders from now on.

    The method that fetches a batch is wrapped, not ``__next__``: the wrapper's frame is then
    between two frames of torch.

    Raises:
        ImportError, AttributeError: this torch has other loaders.
    """
    from torch.utils.data import dataloader  # noqa: PLC0415 - after the script's own import

    loaders: Any = dataloader
    for iterator in (loaders._SingleProcessDataLoaderIter, loaders._MultiProcessingDataLoaderIter):
        iterator._next_data = _measured(iterator._next_data, trace)


def _measured(fetch: Any, trace: TraceWriter) -> Any:
    owner = os.getpid()

    @functools.wraps(fetch)
    def next_data(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic_ns()
        try:
            return fetch(*args, **kwargs)
        finally:
            if os.getpid() == owner:
                trace.add_time(trace_file.LOADER, time.monotonic_ns() - began)

    return next_data
