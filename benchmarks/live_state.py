"""Cost of the live state by number of ranks: the leader's CPU time and bytes, and its readers'.

Summaries of simulated jobs go through the code of the watcher, `holdfast serve` and `holdfast top`.
No peer writes such a state: torchrun has none, and DCGM and Prometheus exporters know no ranks.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.core.live_state import LiveState
from holdfast.serve.live import reader
from holdfast.serve.live.watch import RunWatch
from holdfast.serve.metrics.prometheus import collect_runs, render_metrics
from holdfast.serve.terminal.rows import build_rows
from holdfast.watcher.live_writer import LiveWriter
from tests.unit.serve.simulated_job import simulate, start_message

SIZES = (8, 64, 512, 4096, 16_384)
ROUNDS = 7


def median_ms(step: Callable[[], object]) -> float:
    """Return the median CPU time of a call in milliseconds."""
    spent = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        step()
        spent.append(time.process_time() - begun)
    return statistics.median(spent) * 1e3


def main() -> None:
    """Print one line per size."""
    print("ranks    write  period  of a core     size   read  scrape  series   top")
    for size in SIZES:
        with tempfile.TemporaryDirectory() as base:
            folder = Path(base, "run")
            folder.mkdir()
            writer, job = LiveWriter(1.0), start_message(folder, size)
            tables = iter(
                [simulate(size, time.time() + at, step=at, stuck=2) for at in range(ROUNDS)]
            )
            write_ms = median_ms(lambda: writer._write(job, next(tables), (), LiveState()))  # noqa: B023, SLF001 - called at once
            state = reader.read_live(folder, time.time()).state
            assert state is not None
            period_s = max(1.0, write_ms / 1e3 / 0.05)
            read_ms = median_ms(lambda: reader.read_live(folder, time.time()))  # noqa: B023 - called at once
            watch = RunWatch(folder)
            samples = collect_runs(watch)
            scrape_ms = median_ms(lambda: render_metrics(collect_runs(watch)))  # noqa: B023 - called at once
            top_ms = median_ms(lambda: build_rows(state))  # noqa: B023 - called at once
            size_kib = (folder / "live-0.json").stat().st_size / 1024
        print(
            f"{size:>6} {write_ms:>5.1f} ms {period_s:>4.1f} s {write_ms / 10 / period_s:>8.2f}% "
            f"{size_kib:>6.0f} KiB {read_ms:>4.0f} ms {scrape_ms:>4.0f} ms {len(samples):>7} "
            f"{top_ms:>3.0f} ms"
        )


if __name__ == "__main__":
    main()
