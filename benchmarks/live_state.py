"""Cost of the live state by number of ranks: the leader's CPU time and bytes, and its readers'.

Summaries of simulated jobs go through the code of the watcher, `holdfast serve` and `holdfast top`.
No peer writes such a state: torchrun has none, and DCGM and Prometheus exporters know no ranks.

If Chromium is installed, it then shows the largest job: the wall-clock times from the request to
the first painted page, and from the event that a state changed to the painted update.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.core.live_state import LiveState
from holdfast.serve.live import reader
from holdfast.serve.live.watch import RunWatch
from holdfast.serve.metrics.prometheus import collect_runs, render_metrics
from holdfast.serve.terminal.rows import build_rows
from holdfast.watcher.live_writer import LiveWriter
from tests.unit.serve.served import RUN, make_run, serving
from tests.unit.serve.simulated_job import simulate, start_message

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
    measure_page(SIZES[-1])


def measure_page(size: int) -> None:
    """Print how long a real Chromium takes to show ``size`` ranks, and a change of them."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("page: not measured, Chromium is not installed")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - of the tests

    with tempfile.TemporaryDirectory() as base, sync_playwright() as driver:
        folder = make_run(Path(base), size)
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with serving(Path(base)) as address:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}/run/{RUN}")
            page.wait_for_selector("body[data-painted]")
            first_ms = page.evaluate("() => Number(document.body.dataset.firstPaint)")
            updates = [_update_ms(page, folder, size, at) for at in range(ROUNDS)]
        browser.close()
    print(
        f"page of {size} ranks: first painted in {first_ms:.0f} ms, updates in "
        f"{', '.join(f'{each:.0f}' for each in sorted(updates))} ms from the event"
    )


def _update_ms(page: Page, folder: Path, size: int, at: int) -> float:
    """Change the live state of the run, and return the time of its update on the page."""
    page.evaluate("() => { delete document.body.dataset.painted; }")
    job, writer = start_message(folder, size, generation=1), LiveWriter(1.0)
    writer._append_point = lambda *_: None  # type: ignore[method-assign] # noqa: SLF001 - rare
    table = simulate(size, time.time(), step=200 + at, stuck=(None, 7)[at % 2])
    writer._write(job, table, (), LiveState(stall_s=5.0))  # noqa: SLF001 - the thread would be late
    page.wait_for_selector("body[data-painted]")
    return float(page.evaluate("() => Number(document.body.dataset.painted)"))


if __name__ == "__main__":
    main()
