"""The time in data loaders and in garbage collection is in the trace file."""

from __future__ import annotations

import gc
import os
import time
from pathlib import Path

import pytest

from holdfast.core import trace_file
from holdfast.core.trace_file import TraceWriter
from holdfast.recorder import host_times
from holdfast.watcher.trace_reader import TraceReading
from holdfast.watcher.wait_times import WaitTimes


@pytest.fixture
def trace(tmp_path: Path) -> TraceWriter:
    return TraceWriter(tmp_path / "rank0.trace", rank=0, world_size=2, records=64)


def test_garbage_collection_is_measured(
    trace: TraceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    callbacks = list(gc.callbacks)
    host_times.measure_collections(trace)
    try:
        began = time.monotonic()
        gc.collect()
        took_s = time.monotonic() - began
        with monkeypatch.context() as child:  # a forked data-loader worker shares the file
            child.setattr(os, "getpid", lambda: 1)
            gc.collect()
    finally:
        gc.callbacks[:] = callbacks
    loader_s, collector_s = TraceReading(trace.path).host_seconds()
    assert loader_s == 0.0
    assert 0.0 < collector_s <= took_s


def test_fetching_a_batch_is_measured(trace: TraceWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    dataloader = pytest.importorskip("torch.utils.data.dataloader")
    for name in ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"):
        iterator = getattr(dataloader, name)
        monkeypatch.setattr(iterator, "_next_data", iterator._next_data)
    host_times.measure_loaders(trace)

    class Slow:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, at: int) -> int:
            if at == 1:
                time.sleep(0.05)
            return at

    assert len(list(dataloader.DataLoader(Slow()))) == 2
    loader_s, _ = TraceReading(trace.path).host_seconds()
    assert 0.05 <= loader_s < 5.0


def test_shares_are_those_of_the_window(trace: TraceWriter) -> None:
    waiting, read = WaitTimes(60.0), TraceReading(trace.path)
    waiting.measure({0: read}, 1000.0)
    assert waiting.host_shares(0) == (0.0, 0.0)
    waiting.measure({0: read}, 1005.0)
    trace.add_time(trace_file.LOADER, 2_000_000_000)
    trace.add_time(trace_file.LOADER, 500_000_000)
    trace.add_time(trace_file.COLLECTOR, 500_000_000)
    waiting.measure({0: read}, 1010.0)
    assert waiting.host_shares(0) == (0.5, 0.1)
