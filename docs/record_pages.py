"""Record the docs' pictures of `holdfast serve`, `history cost` and `top`, from simulated jobs.

``python docs/record_pages.py`` needs Chromium, playwright and textual; look at what it writes.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.core.failures import JobState  # noqa: E402 - as above
from holdfast.core.live_state import LiveState  # noqa: E402 - the tests are not installed
from holdfast.serve.live.source import FolderSource  # noqa: E402 - as above
from holdfast.serve.store.cost import compute_cost  # noqa: E402 - as above
from holdfast.serve.store.database import HistoryStore  # noqa: E402 - as above
from holdfast.serve.store.index import index_folders  # noqa: E402 - as above
from holdfast.serve.store.page import cost_page  # noqa: E402 - as above
from holdfast.serve.store.queries import read_runs  # noqa: E402 - as above
from holdfast.serve.terminal.application import TopApplication  # noqa: E402 - as above
from holdfast.watcher.live_writer import LiveWriter  # noqa: E402 - as above
from tests.unit.serve import served  # noqa: E402 - as above
from tests.unit.serve.simulated_job import OVERHEATED, simulate, start_message  # noqa: E402 - above
from tests.unit.serve.store import past_runs  # noqa: E402 - as above

IMAGES = ROOT / "docs" / "images"
PICTURES = (
    ("serve.png", {"width": 1280, "height": 1240}, "light"),
    ("serve-narrow.png", {"width": 390, "height": 844}, "dark"),
)
EVERY_S, DAY_S = 5, 86400
#: Cause of a generated failure, and its message.
FAILURES = (
    (("GPU002", "gpu-fell-off-bus-xid-ecc"), "a GPU of {host} fell off the bus"),
    (("MEM003", "host-oom-killed"), "rank {rank} was killed by the kernel: out of memory"),
    (("SYNC002", "rank-missing-collective"), "rank {rank} never entered all_reduce at train.py:41"),
    (("NET014", "ib-port-degraded"), "a port of {host} is at a quarter of its rate"),
    (("PROC006", "rank-killed"), "rank {rank} was killed by SIGKILL"),
    (("DATA001", "dataloader-worker-died"), "a data loader worker of rank {rank} died"),
)


def write_run(base: Path, ranks: int, seconds: int) -> Path:
    """Write a run in which rank 19 is slow, and the others wait for rank 2 at the end."""
    folder = base / served.RUN
    folder.mkdir()
    served.HOSTILE = "#322 of default_pg"
    served.write_past(folder)
    served.write_check(folder / "check-node000.json")
    writer, job = LiveWriter(1.0), start_message(folder, ranks, generation=1)
    finding = replace(OVERHEATED, message="GPU 3 is throttled: temperature")
    now = time.time()
    for at in range(0, seconds + 1, EVERY_S):
        writer._series_at = float("-inf")  # noqa: SLF001 - as the thread does
        stuck = 2 if at == seconds else None
        table = simulate(ranks, now - seconds + at, step=1000 + at, slow=19, stuck=stuck)
        writer._write(job, table, (finding,), LiveState(stall_s=5.0))  # noqa: SLF001 - as above
    return folder


def record_page(base: Path) -> None:
    """Write the pictures of the page."""
    with served.serving(base) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, viewport, scheme in PICTURES:
            page = browser.new_page(viewport=viewport, color_scheme=scheme)
            page.goto(f"{address}/run/{served.RUN}")
            page.wait_for_selector("body[data-painted]")
            page.screenshot(path=IMAGES / name)
            page.close()
        browser.close()


def generated_runs(folder: Path) -> list[Path]:
    """Write 40 runs of a month, some with failures."""
    chosen = random.Random(7)  # noqa: S311 - no secret
    folders = []
    for number in range(40):
        begin = at = number * 0.7 * DAY_S
        ranks = chosen.choice((64, 128, 256))
        size = {"world_size": ranks, "nodes": ranks // 8}
        records = [past_runs.started(at, **size)]
        for generation in range(chosen.choice((0, 1, 1, 2, 3, 4))):
            saved = past_runs.BEGAN + at + chosen.uniform(0.5, 4) * 3600
            state = JobState(saved_at=saved, progressed=saved + chosen.uniform(60, 1800))
            cause, text = chosen.choice(FAILURES)
            names = {"host": f"node{chosen.randrange(ranks // 8)}", "rank": chosen.randrange(ranks)}
            at = state.progressed - past_runs.BEGAN + 60
            record = past_runs.failed(at, generation, state=state, host=names["host"], cause=cause)
            failure = replace(record.failure, message=text.format(**names))
            at += chosen.uniform(300, 9000)
            records.append(replace(record, failure=failure))
            records.append(past_runs.started(at, generation + 1, **size))
        records.append(past_runs.ended(at + chosen.uniform(1, 8) * 3600))
        folders.append(past_runs.write_run(folder / f"run-{number:02}", records, began=begin))
    return folders


def record_costs(base: Path) -> None:
    """Write the picture of ``holdfast history cost``."""
    store = HistoryStore(str(base / "history"), create=True)
    index_folders(store, generated_runs(base))
    runs = read_runs(store)
    page = base / "cost.html"
    cost = compute_cost(runs, past_runs.BEGAN, past_runs.BEGAN + 30 * DAY_S)
    page.write_text(cost_page(cost, runs, "holdfast-runs/history.sqlite"), encoding="utf-8")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        view = browser.new_page(viewport={"width": 1180, "height": 820}, color_scheme="light")
        view.goto(page.as_uri())
        view.screenshot(path=IMAGES / "history.png")
        browser.close()


async def record_terminal(folder: Path) -> None:
    """Write the picture of the terminal."""
    application = TopApplication(FolderSource(folder))
    async with application.run_test(size=(160, 24)) as pilot:
        await application.workers.wait_for_complete()
        await pilot.pause()
        (IMAGES / "top.svg").write_text(application.export_screenshot(title="holdfast top"))


def main() -> None:
    """Record all pictures."""
    with tempfile.TemporaryDirectory() as base:
        write_run(Path(base), 64, 600)
        record_page(Path(base))
    with tempfile.TemporaryDirectory() as base:
        record_costs(Path(base))
    with tempfile.TemporaryDirectory() as base:
        asyncio.run(record_terminal(write_run(Path(base), 4096, 10)))


if __name__ == "__main__":
    main()
