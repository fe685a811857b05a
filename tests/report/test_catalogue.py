"""How an entry of the catalogue is laid out, on a terminal and as a page."""

from __future__ import annotations

import io

from holdfast.findings import Cause, Remedy, Safety
from holdfast.report import catalogue

FAMILIES = {"SYNC": "ranks out of step", "PROC": "processes"}
ENTRY = Cause(
    code="SYNC900",
    name="rank-asleep",
    summary="A rank sleeps.",
    what_happens="It waits, see rank-lost; ib* and lo* <pid> a|b [x] & `NCCL_* <as is>`.",
    shows_before="Nothing.",
    shows_during="State S.",
    shows_after="A time-out.",
    known_misses="Naps.",
    remedies=(
        Remedy(text="Wake it.", command="kill -CONT 1", safety=Safety.DISRUPTIVE),
        Remedy(text="Let it sleep."),
    ),
    sources=("pytorch/pytorch#1", "man 3 sleep"),
)
OTHER = Cause(
    code="PROC900", name="rank-lost", summary="A rank is lost.", what_happens="Gone.", shows_before="Nothing.",
    shows_during="Nothing.", shows_after="Nothing.", known_misses="Much.", remedies=(Remedy(text="Look for it."),),
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self):
        return True


def pages():
    return {name: write() for name, write in catalogue.pages((ENTRY, OTHER), FAMILIES, "<!-- note -->\n").items()}


def test_an_entry_is_printed_whole():
    shown = io.StringIO()
    catalogue.draw_entry(ENTRY, "ranks out of step", shown, width=80)
    lines = shown.getvalue().splitlines()
    assert lines[0] == "SYNC900 rank-asleep (ranks out of step)"
    labels = [line[:12].strip() for line in lines[1:] if line[:12].strip()]
    assert labels == [
        "in short", "what happens", "shows before", "shows during", "shows after", "known misses", "remedy", "sources",
    ]  # fmt: skip
    assert "Wake it. (disruptive)" in shown.getvalue()
    assert "$ kill -CONT 1" in shown.getvalue()
    assert max(map(len, lines)) <= 80


def test_a_list_that_is_piped_has_one_line_for_each_cause():
    shown = io.StringIO()
    catalogue.draw_list((ENTRY, OTHER), FAMILIES, shown)
    assert shown.getvalue().splitlines() == [
        "SYNC900 rank-asleep  A rank sleeps.",
        "PROC900 rank-lost    A rank is lost.",
    ]


def test_a_list_on_a_terminal_is_laid_out_by_family(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Terminal()
    catalogue.draw_list((ENTRY, OTHER), FAMILIES, shown, width=80)
    lines = [line.split() for line in shown.getvalue().splitlines() if line.strip()]
    assert lines[1][:3] == ["SYNC", "SYNC900", "rank-asleep:"]
    assert lines[2][:3] == ["PROC", "PROC900", "rank-lost:"]


def test_a_page_has_all_headings_and_links():
    page = pages()["rank-asleep.md"]
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [
        *catalogue.HEADINGS.values(), "What to do", "Sources",
    ]  # fmt: skip
    assert "see [rank-lost](rank-lost.md);" in page
    assert "- [pytorch/pytorch#1](https://github.com/pytorch/pytorch/issues/1)" in page
    assert "- man 3 sleep" in page
    assert page.count("How safe that is:") == len(ENTRY.remedies)


def test_nothing_on_a_page_is_mark_up_by_accident():
    assert r"ib\* and lo\* &lt;pid> a\|b \[x] &amp; `NCCL_* <as is>`." in pages()["rank-asleep.md"]


def test_a_page_without_sources_has_no_such_heading():
    assert "Sources" not in pages()["rank-lost.md"]


def test_the_index_lists_causes_by_family():
    lines = pages()["index.md"].splitlines()
    assert lines.index("## SYNC: ranks out of step") < lines.index("## PROC: processes")
    assert "| SYNC900 | [rank-asleep](rank-asleep.md) | A rank sleeps. |" in lines
