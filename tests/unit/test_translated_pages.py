"""Pages in Chinese have the blocks, the links, the tables and the headings of the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.zh.md")), ROOT / "README.zh.md"]
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
#: The real output of the demo, which only the English README has.
DEMO = re.compile(r"<!-- real output.*?begin -->.*?end -->", re.DOTALL)


def english_text(page: Path) -> str:
    return DEMO.sub("", page.with_name(page.name.replace(".zh.md", ".md")).read_text())


def links_of(text: str) -> list[str]:
    """Return the targets of links and pictures without those to other languages."""
    links = [link.replace(".zh.md", ".md") for link in LINK.findall(BLOCK.sub("", text))]
    return sorted(link for link in links if link != "README.md" and "causes/index.md" not in link)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_translated_page_has_the_parts_of_the_english_one(page):
    english, chinese = english_text(page), page.read_text()
    assert BLOCK.findall(chinese) == BLOCK.findall(english)
    assert links_of(chinese) == links_of(english)
    for pattern in (r"^\| ", r"^- "):
        assert len(re.findall(pattern, chinese, re.MULTILINE)) == len(
            re.findall(pattern, english, re.MULTILINE)
        )
    missing = set(CODE.findall(BLOCK.sub("", english))) - set(CODE.findall(BLOCK.sub("", chinese)))
    assert missing == set()


def test_every_page_of_the_start_is_translated():
    assert {page.name for page in PAGES} >= {
        "README.zh.md",
        "index.zh.md",
        "five-minute-diagnosis.zh.md",
        "symptoms.zh.md",
        "tour.zh.md",
    }
