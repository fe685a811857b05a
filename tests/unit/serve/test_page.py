"""The page in a real headless Chromium: content, keyboard, narrow screens, no foreign request."""

from __future__ import annotations

import shutil
import time

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord
from holdfast.core.live_state import SERIES_UNKNOWN, SeriesPoint
from tests.unit.serve.served import (
    HOSTILE,
    RUN,
    make_run,
    serving,
    write_check,
    write_live,
    write_past,
)

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
#: Contrast of WCAG AA for normal text.
MIN_CONTRAST = 4.5
_CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [.2126, .7152, .0722][at], 0);
  const ground = (node) => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  return [...document.querySelectorAll("h1,h2,h3,p,td,th,dt,dd,a,button,label,li,span")].filter((node) => node.offsetParent && node.textContent.trim()).map((node) => {
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), node.tagName + " " + node.className + " " + node.textContent.slice(0, 40)];
  }).sort((x, y) => x[0] - y[0])[0];
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    make_run(base, 64, stuck=2)
    with serving(base) as where:
        yield where


@pytest.fixture
def open_page(browser):
    """Return a function that opens an address; errors of the page fail the test."""
    contexts, errors, foreign = [], [], []

    def open_at(url, *, width=1280, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda message: errors.append(message.text) if message.type == "error" else None,
        )
        page.on(
            "request",
            lambda request: foreign.append(request.url) if "127.0.0.1" not in request.url else None,
        )
        page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert errors == []
    assert foreign == []


def open_run(open_page, address, **options):
    page = open_page(f"{address}/run/{RUN}", **options)
    page.wait_for_selector("body[data-painted]")
    return page


def test_the_page_of_a_run_shows_who_waits_for_whom_and_why_it_failed(open_page, address):
    page = open_run(open_page, address)
    assert "0-1,3-63 wait for 2 in all_reduce #322" in page.inner_text("#waits")
    assert "rank 2 never entered" in page.inner_text("#verdicts")
    assert "restart: the first failure" in page.inner_text("#events")
    assert "32 \N{MULTIPLICATION SIGN} NVIDIA A100-SXM4-80GB" in page.inner_text("#kinds")
    assert page.inner_text("#kinds").count("of the time in collectives") == 2
    assert "84 °C (GPU 3 throttled)" in page.inner_text("#nodes")
    assert "61.0 ms" in page.inner_text("#latency")
    assert page.locator("#health path.rate").count() == 1
    assert page.locator("#health line.failure").count() == 1


def test_hostile_text_stays_text(open_page, address):
    page = open_run(open_page, address)
    assert HOSTILE in page.inner_text("#verdicts")
    assert "<b>throttled</b>" in page.inner_text("#findings")
    assert page.title() == f"{RUN} · holdfast"


def test_the_report_of_an_incident_opens(open_page, address):
    page = open_run(open_page, address)
    page.click("text=Report of incident 0")
    page.wait_for_selector("text=the report of incident 0")


def test_the_heat_map_is_read_with_the_keyboard(open_page, address):
    page = open_run(open_page, address)
    page.focus("#heat")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    assert "step 107, rank 3: " in page.inner_text("#heat-value")
    page.keyboard.press("ArrowLeft")
    assert "step 106, rank 3: " in page.inner_text("#heat-value")


def test_the_heat_map_zooms_with_keys_buttons_and_a_dragged_area(open_page, address):
    page = open_run(open_page, address)
    whole = "Heat map of 64 rows of ranks over 8 points in time"
    assert page.get_attribute("#heat", "aria-label") == whole
    page.focus("#heat")
    page.keyboard.press("+")
    page.wait_for_selector("#heat[aria-label*='32 rows of ranks over 4 points in time, enlarged']")
    assert "step 107" in page.inner_text("#heat-end")
    assert page.inner_text("#heat-last") == "rank 31"
    page.click("#heat-out")
    page.wait_for_selector(f"#heat[aria-label='{whole}']")
    box = page.locator("#heat").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2, steps=3)
    page.mouse.up()
    page.wait_for_selector("#heat[aria-label*='32 rows of ranks over 8 points']")
    assert page.inner_text("#heat-first") == "rank 32"
    page.focus("#heat")
    page.keyboard.press("Escape")
    page.wait_for_selector(f"#heat[aria-label='{whole}']")


def test_a_run_of_some_seconds_shows_step_rates_without_empty_columns(open_page, tmp_path):
    folder = make_run(tmp_path, 8)
    lines = (folder / "live-0.jsonl").read_bytes().splitlines()
    points = [msgspec.json.decode(line, type=SeriesPoint) for line in lines]
    unknown = bytes([SERIES_UNKNOWN] * 8)
    points = [
        replace(point, waits=unknown, rates=unknown if at < 2 else point.rates)
        for at, point in enumerate(points)
    ]
    (folder / "live-0.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, points)))
    with serving(tmp_path) as address:
        page = open_run(open_page, address)
        assert page.input_value("#heat-metric") == "rates"
        assert "over 6 points in time" in page.get_attribute("#heat", "aria-label")
        page.close()


def test_results_of_checks_beside_the_run_are_shown(open_page, tmp_path):
    folder = make_run(tmp_path, 8)
    write_check(folder / "check-node000.json")
    (tmp_path / "env.json").write_text('{"schema": "holdfast/1", "command": "env"}')
    with serving(tmp_path) as address:
        page = open_run(open_page, address)
        found = page.inner_text("#findings")
        assert "holdfast check node000" in found
        assert "1 ok, 1 unknown" in found
        assert "port 29500 is in use" in found
        assert "1 not checked" in found
        assert "Nothing wrong was found." in found
        page.close()


def test_a_rank_opens_with_its_stack(open_page, address):
    page = open_run(open_page, address)
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.inner_text("#rank-title") == "Rank 2"
    assert "awaited by 63 ranks" in page.inner_text("#map-value")
    assert "/job/train.py:9 in main" in page.inner_text("#rank-body pre")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_width_overflows_and_every_text_has_contrast(open_page, address, width, scheme):
    page = open_run(open_page, address, width=width, scheme=scheme)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    contrast, text = page.evaluate(_CONTRASTS)
    assert contrast >= MIN_CONTRAST, text


def test_the_page_follows_the_run(open_page, tmp_path):
    folder = make_run(tmp_path, 8)
    with serving(tmp_path) as address:
        page = open_run(open_page, address)
        assert "No rank has waited" in page.inner_text("#waits")
        write_live(folder, 8, stuck=5)
        page.wait_for_selector("text=0-4,6-7 wait for 5")
        page.close()


def test_a_past_run_without_live_state_shows_what_its_ledger_holds(open_page, tmp_path):
    folder = tmp_path / RUN
    write_past(folder)
    Ledger(folder).add(LedgerRecord(event=LedgerEvent.ENDED, at=time.time(), status=1))
    with serving(tmp_path) as address:
        page = open_run(open_page, address)
        page.wait_for_selector("text=The run failed with status 1")
        page.wait_for_selector("text=restart: the first failure")
        assert not page.is_visible("#ranks")
        page.close()


def test_thousands_of_ranks_are_painted_and_folded(open_page, tmp_path):
    make_run(tmp_path, 4096)
    with serving(tmp_path) as address:
        page = open_run(open_page, address)
        assert page.get_attribute("#heat", "aria-label").startswith("Heat map of 256 rows")
        assert page.locator("#ranks tbody tr").count() <= 14
        assert "node000" in page.inner_text("#ranks tbody tr:first-child")
        page.close()


def test_the_list_of_runs_links_to_each(open_page, address):
    page = open_page(f"{address}/")
    page.click(f"text={RUN}")
    page.wait_for_selector("body[data-painted]")
