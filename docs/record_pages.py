"""Record the pictures of `holdfast serve` and `holdfast top` in the docs, from simulated jobs.

``python docs/record_pages.py`` needs Chromium, playwright and textual; look at what it writes.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from holdfast.core.live_state import LiveState  # noqa: E402 - the tests are not installed
from holdfast.serve.live.source import FolderSource  # noqa: E402 - as above
from holdfast.serve.terminal.application import TopApplication  # noqa: E402 - as above
from holdfast.watcher.live_writer import LiveWriter  # noqa: E402 - as above
from tests.unit.serve import served  # noqa: E402 - as above
from tests.unit.serve.simulated_job import OVERHEATED, simulate, start_message  # noqa: E402 - above

IMAGES = ROOT / "docs" / "images"
PICTURES = (
    ("serve.png", {"width": 1280, "height": 1240}, "light"),
    ("serve-narrow.png", {"width": 390, "height": 844}, "dark"),
)
EVERY_S = 5


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
        asyncio.run(record_terminal(write_run(Path(base), 4096, 10)))


if __name__ == "__main__":
    main()
