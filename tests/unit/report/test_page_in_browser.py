"""The incident page in a real headless Chromium: nothing overflows, and copying works."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.core.findings import Fact
from holdfast.report.html import incident_page
from holdfast.report.source_windows import SourceRow, SourceWindow
from tests.unit.report.page_parser import page_of
from tests.unit.report.sample import Incident, incident
from tests.unit.report.test_html import evil_incident

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in BROWSERS if (path := shutil.which(name))), None)
WIDTHS = (320, 390, 900, 901, 1280)
#: Measures each frame when all have loaded. The pages' own scripts run in the frames.
MEASURE = """
const measure = (frame) => {
  const page = frame.contentDocument, root = page.documentElement;
  const box = (element) => element ? element.getBoundingClientRect().toJSON() : null;
  const gap = page.querySelector(".gap b");
  const wide = [...page.body.querySelectorAll("*")].filter((each) => box(each).right > frame.clientWidth + 1);
  page.getElementById("copy-summary").click();
  return {
    width: frame.clientWidth, scroll: root.scrollWidth, wide: wide.map((each) => each.outerHTML.slice(0, 90)),
    column: box(page.querySelector("th + th")), heading: page.querySelector("th + th")?.textContent,
    gap: box(gap), gapText: gap?.textContent, gapCut: gap ? gap.scrollWidth > gap.clientWidth : false,
    font: gap ? parseFloat(getComputedStyle(gap).fontSize) : 0,
    paper: getComputedStyle(page.body).backgroundColor,
  };
};
addEventListener("load", async () => {
  const frames = [...document.querySelectorAll("iframe")];
  const measured = frames.map(measure);
  await new Promise((done) => setTimeout(done, 200));
  frames.forEach((frame, index) => {
    const page = frame.contentDocument;
    measured[index].copied = page.getElementById("copied").textContent;
    measured[index].selected = frame.contentWindow.getSelection().toString();
    measured[index].summary = page.getElementById("summary").textContent;
  });
  document.body.textContent = JSON.stringify(measured);
});
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason=f"none of {', '.join(BROWSERS)} is installed"),
]


def measure(folder: Path, page: str, *options: str) -> list[dict]:
    """Return what MEASURE yields for ``page`` in frames of all WIDTHS."""
    frames = "".join(
        f'<iframe style="border:0;width:{width}px;height:900px" srcdoc="{html.escape(page)}"></iframe>'
        for width in WIDTHS
    )
    file = folder / "frames.html"
    file.write_text(
        f"<!doctype html><meta charset=utf-8><body>{frames}<script>{MEASURE}</script>", "utf-8"
    )
    output = browse(folder, file, *options, "--dump-dom")
    (body,) = re.findall(r"<body>(.*?)</body>", output, re.DOTALL)
    return json.loads(html.unescape(body))


def browse(folder: Path, file: Path, *options: str) -> str:
    """Open ``file`` in the browser and return what it prints."""
    command = [
        *(str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000"),
        *(*options, file.as_uri()),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


def printed_pages(folder: Path, page: str) -> int:
    """Return the number of sheets of ``page``."""
    file, pdf = folder / "page.html", folder / "page.pdf"
    file.write_text(page, "utf-8")
    browse(folder, file, f"--print-to-pdf={pdf}")
    return len(re.findall(rb"/Type /Page\b", pdf.read_bytes()))


def sample_page() -> str:
    sample = incident(64, stuck=41)
    rows = (SourceRow(140, "x = " + "[0] * " * 30), SourceRow(141, "sleep()", "rank 41", root=True))
    return incident_page(
        sample.verdict,
        sample.timeline,
        title=sample.title,
        facts=sample.facts,
        stacks=sample.stacks,
        source=(SourceWindow("/a/very/long/path" * 9 + "/train.py", rows),),
    )


def test_nothing_overflows_and_never_entered_is_visible_on_a_phone(tmp_path):
    for frame in measure(tmp_path, sample_page(), "--blink-settings=preferredColorScheme=1"):
        width = frame["width"]
        assert frame["scroll"] <= width, frame["wide"]
        assert frame["wide"] == [], width
        assert frame["heading"] == "Never entered"
        assert 0 < frame["column"]["right"] <= width
        assert frame["column"]["width"] >= 50
        assert frame["gapText"] == "never entered all_reduce #31"
        assert not frame["gapCut"], width
        assert frame["gap"]["right"] <= width
        assert frame["font"] >= 11
        assert frame["paper"] == "rgb(246, 246, 244)"


def test_summary_is_copied_or_selected_and_the_page_is_dark_on_request(tmp_path):
    for frame in measure(tmp_path, sample_page(), "--blink-settings=preferredColorScheme=0"):
        assert frame["paper"] == "rgb(18, 20, 23)"
        assert frame["copied"] in {"Copied", "Selected: press Ctrl+C"}
        if frame["copied"] != "Copied":
            assert frame["selected"].split() == frame["summary"].split()


def test_folded_evidence_is_printed(tmp_path):
    sample = incident()
    facts = tuple(Fact(text=f"fact {number}", origin="x") for number in range(150))
    pages = [
        printed_pages(
            tmp_path, incident_page(sample.verdict, sample.timeline, title="t", facts=shown)
        )
        for shown in ((), facts)
    ]
    assert 1 <= pages[0] <= 3
    assert 3 <= pages[1] - pages[0] <= 6


@pytest.mark.parametrize("sample", [incident(1024), evil_incident()], ids=["1024", "hostile"])
def test_long_texts_do_not_overflow(tmp_path, sample: Incident):
    for frame in measure(tmp_path, page_of(sample)):
        assert frame["scroll"] <= frame["width"], frame["wide"]
