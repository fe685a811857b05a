"""Layout of a catalogue entry on a terminal and as a page."""

from __future__ import annotations

import io

from holdfast.core.findings import Cause, Remedy, Safety
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.report import catalogue

FAMILIES = {"SYNC": "ranks out of step", "PROC": "processes"}
ENTRY = Cause(
    code="SYNC900",
    name="rank-asleep",
    summary="A rank sleeps.",
    what_happens="It waits, see rank-lost; ib* and lo* <pid> a|b [x] & `NCCL_* <as is>`.",
    shows_before="Nothing.",
    shows_during="State S.",
    shows_after="A timeout.",
    known_misses="Naps.",
    remedies=(
        Remedy(text="Wake it.", command="kill -CONT 1", safety=Safety.DISRUPTIVE),
        Remedy(text="Let it sleep."),
    ),
    sources=("pytorch/pytorch#1", "man 3 sleep"),
    signals=(
        LogSignal(
            name="asleep",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="a rank sleeps",
            patterns=("asleep",),
            examples=("[rank1]: fell asleep",),
        ),
    ),
)
OTHER = Cause(
    code="PROC900",
    name="rank-lost",
    summary="A rank is lost.",
    what_happens="Gone.",
    shows_before="Nothing.",
    shows_during="Nothing.",
    shows_after="Nothing.",
    known_misses="Much.",
    remedies=(Remedy(text="Look for it."),),
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def pages():
    return {
        name: write()
        for name, write in catalogue.pages((ENTRY, OTHER), FAMILIES, "<!-- note -->\n").items()
    }


def test_entry_has_all_sections():
    shown = io.StringIO()
    catalogue.draw_entry(ENTRY, "ranks out of step", shown, width=80)
    lines = shown.getvalue().splitlines()
    assert lines[0] == "SYNC900 rank-asleep (ranks out of step)"
    labels = [line[:12].strip() for line in lines[1:] if line[:12].strip()]
    assert labels == [
        "in short",
        "what happens",
        "warnings",
        "symptoms",
        "in the logs",
        "blind spots",
        "log lines",
        "remedy",
        "sources",
    ]
    assert "Wake it. (restarts the job)" in shown.getvalue()
    assert "$ kill -CONT 1" in shown.getvalue()
    assert max(map(len, lines)) <= 80


def test_piped_list_has_one_line_per_cause():
    shown = io.StringIO()
    catalogue.draw_list((ENTRY, OTHER), FAMILIES, shown)
    assert shown.getvalue().splitlines() == [
        "SYNC900 rank-asleep  A rank sleeps.",
        "PROC900 rank-lost    A rank is lost.",
    ]


def test_list_on_a_terminal_is_grouped_by_family(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = Terminal()
    catalogue.draw_list((ENTRY, OTHER), FAMILIES, shown, width=80)
    lines = [line.split() for line in shown.getvalue().splitlines() if line.strip()]
    assert lines[1][:3] == ["SYNC", "SYNC900", "rank-asleep:"]
    assert lines[2][:3] == ["PROC", "PROC900", "rank-lost:"]


def test_page_has_all_headings_and_links():
    page = pages()["rank-asleep.md"]
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == [
        *catalogue.HEADINGS.values(),
        "What to do",
        "Sources",
    ]
    assert "see [rank-lost](rank-lost.md);" in page
    assert "- [pytorch/pytorch#1](https://github.com/pytorch/pytorch/issues/1)" in page
    assert "- man 3 sleep" in page
    assert page.startswith("# SYNC900: A rank sleeps\n")
    assert "```text\n[rank1]: fell asleep\n```" in page
    assert page.count("Risk: ") == len(ENTRY.remedies)
    assert "Risk: **restarts the job**" in page
    assert "Risk: **manual**" in page


def test_page_text_is_escaped():
    assert r"ib\* and lo\* &lt;pid> a\|b \[x] &amp; `NCCL_* <as is>`." in pages()["rank-asleep.md"]


def test_page_without_sources_has_no_sources_heading():
    assert "Sources" not in pages()["rank-lost.md"]


def test_index_lists_causes_by_family():
    lines = pages()["index.md"].splitlines()
    assert lines.index("## SYNC: ranks out of step") < lines.index("## PROC: processes")
    assert "| SYNC900 | [rank-asleep](rank-asleep.md) | A rank sleeps. |" in lines
