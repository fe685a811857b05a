"""The structure of the incident page: order, source excerpt, code, limits, summary."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Fact, Finding, Level, Remedy, Subject, Verdict
from holdfast.report.html import incident_page
from holdfast.report.source_windows import SourceRow, SourceWindow, read_windows
from holdfast.report.timeline import Timeline, TimelineLane, TimelineSpan
from tests.unit.core.fake_secrets import random_text
from tests.unit.report.page_parser import Page, page_of
from tests.unit.report.sample import incident

SECTIONS = ["suspects", "timeline", "remedies", "limits", "evidence"]


def bare_page(verdict: Verdict, **options) -> str:
    return incident_page(verdict, Timeline((), 0.0, 0.0), title="incident 0", **options)


def root(**options) -> Finding:
    usual = {"code": "SYNC002", "cause": "c", "level": Level.ERROR, "message": "rank 2 is late"}
    return Finding(**usual | options)


@pytest.fixture(scope="module")
def source() -> str:
    return page_of(incident())


def test_verdict_timeline_remedies_certainty_and_evidence_in_this_order(source):
    marks = [
        "<h1",
        'class="verdict"',
        'id="copy-summary"',
        *(f'id="{name}"' for name in SECTIONS[1:]),
    ]
    places = [source.index(mark) for mark in marks]
    assert places == sorted(places)


def test_all_evidence_is_folded(source):
    _, evidence = source.split('id="evidence"')
    assert evidence.count("<details>") == evidence.count("<summary>") == 6
    assert "<details open" not in source


def test_causes_come_first_if_there_is_no_root():
    text = bare_page(Verdict(question="q", suspects=(root(),), unseen=("kernel log",)))
    assert re.findall(r'<section class="card[^"]*" id="(\w+)">', text) == [
        "suspects",
        "limits",
        "evidence",
    ]


def test_suspects_that_repeat_the_root_are_left_out():
    other = root(message="the network is slow", code="NET001")
    text = bare_page(Verdict(question="q", root=root(), suspects=(root(), other)))
    assert text.count("ank 2 is late") == 3  # title, headline, summary
    assert text.count("The network is slow.") == 1


def test_the_table_states_which_call_was_never_entered(source):
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', source)
    assert heads[:4] == ["Ranks", "Never entered", "Waiting in", "At"]
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="missing">(.*?)</td>', source)
    assert rows == [("0", ""), ("1", ""), ("2", "all_reduce #31"), ("3", "")]


def test_backticks_and_source_lines_become_code():
    remedy = Remedy(text="Call `a < b` at train.py:7", command="x && y --z-a")
    text = bare_page(Verdict(question="q", root=root(remedies=(remedy,))))
    assert "<p>Call <code>a &lt; b</code> at <code>train.py:7</code> " in text
    option = '<span class="option">--z-a</span>'
    assert f'<pre class="command"><code>x &amp;&amp; y {option}</code></pre>' in text


def test_summary_is_plain_text_with_cause_rank_line_waiting_ranks_and_remedy():
    window = SourceWindow("train.py", (SourceRow(141, "    time.sleep(9)", "rank 2", root=True),))
    sample = incident()
    source = incident_page(
        sample.verdict, sample.timeline, title="incident 0, generation 1", source=(window,)
    )
    (summary,) = re.findall(
        r'<pre class="text" id="summary" tabindex="0">(.*?)</pre>', source, re.DOTALL
    )
    assert summary.split("\n") == [
        "✗ rank 2 never entered all_reduce #31 — asleep at examples/rvq/train.py:141 in next_batch()",
        "Cause: SYNC002 rank-missing-collective, 97% confidence",
        "Where: rank 2 on node-00",
        "Line: examples/rvq/train.py:141",
        "    time.sleep(9)",
        "Effect: each of ranks 0-1,3 is blocked in all_reduce #31 of group default_pg, waiting for rank 2",
        "Remedy: Remove the wait at examples/rvq/train.py:141, or let all ranks wait there",
        "Not visible: kernel log: reading it needs more rights than this job has",
        "incident 0, generation 1, 2026-11-21 07:20:09 UTC",
    ]


LONG = "<b>&amp;</b> `x` /a/b.py:1 " * 4000  # 10^5 characters


def test_very_long_texts_are_bounded_and_escaped():
    spans = (TimelineSpan(0.0, None, LONG, LONG, LONG),)
    lanes = tuple(TimelineLane(rank, LONG, spans, LONG, LONG, (LONG,)) for rank in range(8))
    fact = Fact(text=LONG, origin=LONG, host=LONG)
    claim = root(
        message=LONG,
        subject=Subject(rank=0, host=LONG, file=LONG, line=1),
        evidence=(fact,),
        remedies=(Remedy(text=LONG, command=LONG),),
    )
    text = incident_page(
        Verdict(
            question=LONG, root=claim, consequences=(claim,), suspects=(claim,), unseen=(LONG,)
        ),
        Timeline(lanes, 0.0, 9.0),
        title="incident 0",
        facts=(fact,),
        run={"run": LONG},
    )
    assert len(text) < 400_000
    page = Page(text)
    assert page.count("b") < 20  # our own
    (headline,) = re.findall(r"</span> (.*?)</h1>", text)
    assert len(re.sub("<.*?>", "", headline)) < 2000
    assert page.words.count("The whole message") == 1


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "a <b>.py"
    lines = [f"line_{number} = {number}" for number in range(1, 41)]
    lines[20:24] = ["", "", "def f():", "    wait()  # <i>"]  # lines 21 to 24
    file.write_text("\n".join(lines))
    return file


def verdict_at(file, line, *, evidence=(), others=None) -> Verdict:
    consequences = ()
    if others is not None:
        consequences = (
            root(
                message="ranks 0-1 are blocked in x",
                subject=Subject(rank=0, file=str(file), line=others),
            ),
        )
    subject = Subject(rank=2, file=str(file), line=line)
    return Verdict(
        question="q", root=root(subject=subject, evidence=evidence), consequences=consequences
    )


def test_source_shows_root_cited_lines_and_where_others_wait(program):
    fact = Fact(text="lint: if rank == 0", origin=f"{program}:10")
    (window,) = read_windows(verdict_at(program, 24, evidence=(fact,), others=24))
    shown = [(row.number, row.note, row.root) for row in window.rows]
    assert shown == [
        (9, "", False),
        (10, "condition", False),
        (11, "", False),
        (0, "", False),
        (23, "", False),
        (24, "rank 2; ranks 0-1", True),
        (25, "", False),
        (26, "", False),
        (27, "", False),
    ]
    assert window.rows[5].code == "    wait()  # <i>"


def test_source_is_escaped(program):
    verdict = verdict_at(program, 24)
    text = bare_page(verdict, source=read_windows(verdict))
    assert "<figcaption>" in text
    assert "a &lt;b&gt;.py</figcaption>" in text
    assert "<code>    wait()  # &lt;i&gt;</code>" in text
    assert '<div class="row root"><span class="number">24</span>' in text
    Page(text)


def test_secrets_in_source_lines_do_not_reach_the_page(program):
    key, password = random_text("page", 32), "t0p-s3cret"
    program.write_text(
        f'login(api_key="{key}")\npem = """\n-----BEGIN RSA PRIVATE KEY-----\n{key}\n'
        f'-----END RSA PRIVATE KEY-----"""\nsync(password = "{password}", group=group)\n'
    )
    fact = Fact(text=f"lint: password == '{password}'", origin=f"{program}:4")
    verdict = verdict_at(program, 6, evidence=(fact,), others=1)
    (window,) = read_windows(verdict)
    assert [(row.number, row.code) for row in window.rows] == [
        (1, 'login(api_key="<redacted:password>")'),
        (2, 'pem = """'),
        (3, "<redacted:private-key>"),
        (4, "<redacted:private-key>"),
        (5, '<redacted:private-key>"""'),
        (6, 'sync(password = "<redacted:password>", group=group)'),
    ]
    assert password not in window.rows[3].note
    assert "&lt;redacted:password&gt;" in bare_page(verdict_at(program, 6), source=(window,))


@pytest.mark.parametrize("line", [0, 41, 10**9])
def test_lines_outside_the_file_are_left_out(program, line):
    assert read_windows(verdict_at(program, line)) == ()


def test_only_readable_python_files_are_shown(tmp_path):
    (tmp_path / "secret.txt").write_text("password\n")
    (tmp_path / "folder.py").mkdir()
    for name in ("secret.txt", "folder.py", "absent.py"):
        assert read_windows(verdict_at(tmp_path / name, 1)) == ()


def test_source_of_many_cited_lines_is_bounded(program):
    facts = tuple(Fact(text="x", origin=f"{program}:{line}") for line in range(1, 41))
    lines = "\n".join(f"x{n} = '{'y' * 900}'" for n in range(4000))
    program.write_text(lines)
    far = tuple(Fact(text="x", origin=f"{program}:{line}") for line in range(1, 4000, 10))
    (window,) = read_windows(verdict_at(program, 3000, evidence=(*facts, *far)))
    assert len(window.rows) < 60
    assert any(row.root for row in window.rows)
    assert max(len(row.code) for row in window.rows) <= 200


def test_no_page_repeats_an_action_button():
    sample = incident()
    verdict = replace(sample.verdict, suspects=(sample.verdict.root,))
    text = incident_page(verdict, sample.timeline, title="t")
    assert text.count("<button") == 1
