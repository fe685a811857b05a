from __future__ import annotations

import base64
import hashlib
import re
import time

import msgspec
import pytest

from holdfast.core.findings import Fact, Finding, Level, Remedy, RuledOut, Subject, Verdict
from holdfast.report.html import ROWS, incident_page
from holdfast.report.timeline import Timeline, TimelineLane, TimelineSpan
from tests.unit.report.page_parser import Page, page_of
from tests.unit.report.sample import Incident, incident

EVIL = (
    "<script>alert('x')</script>\"'><img src=http://evil.example/x onerror=alert(1)>\x1b[31m\udcff"
)


@pytest.fixture(scope="module")
def source() -> str:
    return page_of(incident())


@pytest.fixture(scope="module")
def page(source) -> Page:
    return Page(source)


def test_page_contains_the_whole_verdict(page):
    verdict = incident().verdict
    evidence = [text for fact in verdict.root.evidence for text in (fact.text, fact.origin)]
    for text in (
        "rank 2 never entered all_reduce #31",
        "Asleep at examples/rvq/train.py:141 in next_batch().",
        "The job made no progress for 6.1 s.",
        "Action: restart 1 of 3.",
        "SYNC002",
        "97% confidence",
        *evidence,
        *(remedy.text for remedy in verdict.root.remedies),
        verdict.root.remedies[1].command,
        "manual",
        "restarts the job",
        "Each of ranks 0-1,3 is blocked in all_reduce #31",
        *(out.why for out in verdict.ruled_out),
        *verdict.unseen,
        "torch 2.13.0+cpu",
        "restart 1 of 3",
        "2026-11-21 07:20:09 UTC",
    ):
        assert text in page.words, text


@pytest.mark.parametrize(
    ("message", "large", "small"),
    [
        (
            "rank 2 missed all_reduce #31; it is blocked at x.py:4",
            "rank 2 missed all_reduce #31",
            "It is blocked at x.py:4.",
        ),
        (
            "rank 2 is stopped at train.py:41; the others wait",
            "rank 2 is stopped at train.py:41",
            "The others wait.",
        ),
        ("rank 2 was killed by SIGKILL", "rank 2 was killed by SIGKILL", None),
        ("bad `x`: x.get() differs; it is 4", "bad x", "x.get() differs; it is 4."),
    ],
)
def test_headline_and_paragraph(message, large, small):
    claim = Finding(code="SYNC002", cause="c", level=Level.ERROR, message=message)
    source = incident_page(Verdict(question="", root=claim), Timeline((), 0.0, 0.0), title="t")
    (headline,) = re.findall(r"</span> (.*?)</h1>", source)
    assert re.sub("<.*?>", "", headline) == large
    paragraphs = re.findall(r'<p class="verdict">(.*?)</p>', source)
    assert [re.sub("<.*?>", "", text) for text in paragraphs] == ([small] if small else [])


def test_page_loads_nothing(source, page):
    for tag, attributes in page.elements:
        assert tag not in {"iframe", "object", "embed", "base", "img", "form"}
        for name in (
            "src",
            "srcset",
            "href",
            "xlink:href",
            "action",
            "data",
            "poster",
            "background",
        ):
            value = attributes.get(name) or ""
            assert value in {"", "data:,"}, (tag, name, value)
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL).group(1)
    assert "@import" not in style
    assert "url(" not in style
    assert "url(" not in source
    assert "http://" not in source
    assert "https://" not in source


def test_security_policy_allows_only_own_script(source, page):
    (policy,) = [
        attributes["content"] for tag, attributes in page.elements if "http-equiv" in attributes
    ]
    script = re.search(r"<script>(.*?)</script>", source, re.DOTALL).group(1)
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        policy
        == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{checksum}'"
    )
    assert page.count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_lane_per_rank_and_bar_per_call(page):
    lanes = [attributes for _, attributes in page.elements if "data-title" in attributes]
    assert len(lanes) == 4
    assert sum("named" in lane["class"].split() for lane in lanes) == 1
    assert page.count("div", "gap") == 1
    assert page.count("i", "bar") == sum(len(lane.spans) for lane in incident().timeline.lanes)
    assert sum("flying" in (each.get("class") or "").split() for _, each in page.elements) == 4


def test_chart_has_a_text_alternative(page):
    (chart,) = [attributes for _, attributes in page.elements if attributes.get("role") == "img"]
    assert chart["aria-label"].endswith(
        "Ranks 0-1,3: in all_reduce #31, never completed. Rank 2: in no collective."
    )
    assert page.count("table", "lanes") == 1
    (html,) = [attributes for tag, attributes in page.elements if tag == "html"]
    assert html["lang"] == "en"


def test_stacks_are_grouped_smallest_group_first(page, source):
    heads = re.findall(r"<article><h3[^>]*>(.*?)</h3>", source)
    assert heads == ["rank 2", "ranks 0-1,3"]
    # main() and <module> are the two outermost frames of both stacks
    assert page.count("li", "common") == 2


def test_default_stacks_are_those_of_the_lanes():
    sample = incident()
    source = incident_page(sample.verdict, sample.timeline, title="t")
    assert re.findall(r"<article><h3[^>]*>(.*?)</h3>", source) == ["rank 2", "ranks 0-1,3"]


def test_facts_of_many_ranks_share_a_row(source):
    assert source.count("torch 2.13.0+cpu") == 1


def evil_incident() -> Incident:
    claim = Finding(
        code=EVIL,
        cause=EVIL,
        level=Level.ERROR,
        message=f"{EVIL} — {EVIL}",
        subject=Subject(rank=0, host=EVIL, link=EVIL, file=EVIL, line=1),
        evidence=(Fact(text=EVIL, origin=EVIL, rank=0, host=EVIL, time=1e300),),
        remedies=(Remedy(text=EVIL, command=EVIL),),
        confidence=0.5,
    )
    spans = (TimelineSpan(0.0, 1.0, EVIL, EVIL, EVIL), TimelineSpan(2.0, None, EVIL, EVIL, EVIL))
    lanes = (
        TimelineLane(0, EVIL, spans[:1], EVIL, EVIL, (EVIL,)),
        TimelineLane(1, EVIL, spans, EVIL, EVIL, (EVIL, EVIL)),
    )
    return Incident(
        verdict=Verdict(
            question=EVIL,
            root=claim,
            consequences=(claim,),
            suspects=(claim,),
            ruled_out=(RuledOut(EVIL, EVIL),),
            unseen=(EVIL,),
        ),
        timeline=Timeline(lanes, 0.0, 9.0),
        facts=(Fact(text=EVIL, origin=EVIL, time=float("nan")),),
        stacks={0: (EVIL,), 1: (EVIL, EVIL)},
        groups=(),
        run={EVIL: EVIL, "decision": EVIL},
        title=EVIL,
    )


def test_hostile_strings_are_escaped():
    source = page_of(evil_incident())
    page = Page(source)
    source.encode("utf-8")
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert "\x1b" not in source
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert "\\x1b[31m\\udcff" in page.words


def test_empty_verdict_and_timeline():
    page = Page(
        incident_page(Verdict(question="did it fail?"), Timeline((), 0.0, 0.0), title="incident 0")
    )
    assert "nothing failed" in page.words
    assert page.count("div", "chart") == 0
    (body,) = [attributes for tag, attributes in page.elements if tag == "body"]
    assert body["class"] == "fine"


def test_suspects_without_a_root():
    suspect = Finding(
        code="NET001", cause="slow-link", level=Level.WARNING, message="eth0 drops packets"
    )
    page = Page(
        incident_page(Verdict(question="q", suspects=(suspect,)), Timeline((), 0.0, 0.0), title="t")
    )
    assert "no single root cause" in page.words
    assert "eth0 drops packets" in page.words


def test_long_tables_are_limited_with_a_note():
    facts = [Fact(text=f"fact {number}", origin="o") for number in range(ROWS + 7)]
    page = Page(
        incident_page(Verdict(question="q"), Timeline((), 0.0, 0.0), title="t", facts=facts)
    )
    assert f"fact {ROWS - 1} " in page.words
    assert f"fact {ROWS} " not in page.words
    assert "and 7 more" in page.words


def test_thousand_different_ranks_fit_a_page():
    sample = incident(1024)
    lanes = tuple(
        msgspec.structs.replace(
            lane,
            place=f"model.py:{lane.rank}",
            stack_lines=tuple(f"f{n} (m.py:{lane.rank})" for n in range(40)),
        )
        for lane in sample.timeline.lanes
    )
    stacks = {lane.rank: lane.stack_lines for lane in lanes}
    changed = Incident(
        sample.verdict,
        Timeline(lanes, sample.timeline.begin, sample.timeline.end),
        sample.facts,
        stacks,
        (),
    )
    source = page_of(changed)
    assert len(source.encode()) < 3_000_000
    assert "1000 more distinct stacks" in source
    Page(source)


@pytest.mark.slow
def test_size_and_time_are_bounded():
    ranks, limit_s = 16_384, 30.0
    sample = incident(ranks)
    start = time.process_time()
    source = page_of(sample)
    assert time.process_time() - start < limit_s
    assert len(source.encode()) < 100_000
    assert f"ranks 0-1,3-{ranks - 1} ({ranks - 1})" in source
