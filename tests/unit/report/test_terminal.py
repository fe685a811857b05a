from __future__ import annotations

import io
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len

from holdfast.core.findings import Fact, Finding, Level, Remedy, RuledOut, Subject, Verdict
from holdfast.core.rank_sets import RankGroup
from holdfast.report.terminal import MAX_ROWS, render_verdict
from tests.unit.report.sample import Incident, incident
from tests.unit.report.snapshot import assert_same

REPORT = "holdfast-runs/20261121-071958-4f2a/incidents/0/report.html"


class Terminal(io.StringIO):
    """A fake terminal with a selectable encoding."""

    def __init__(self, encoding: str = "utf-8", *, tty: bool = True) -> None:
        super().__init__()
        self._encoding, self._tty = encoding, tty

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return self._tty


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(verdict: Verdict, file: io.StringIO | None = None, **options) -> str:
    file = file or io.StringIO()
    render_verdict(verdict, file=file, **options)
    return file.getvalue()


def whole(sample: Incident, width: int) -> str:
    return shown(
        sample.verdict,
        groups=sample.groups,
        elapsed_s=6.1,
        action="restart 1 of 3",
        html=REPORT,
        width=width,
    )


# Expected contents: the first line is the root's message; 97 % is its confidence of 0.97; the three equal consequences
# are one line about ranks 0-1,3 (of 1,024 ranks: 0-1,3-1023, which are 1,023); each piece of evidence has its origin,
# with rank and host only if neither text nor origin contains them; commands and the report's path are never wrapped,
# because users copy them.
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("ranks", [4, 1024])
def test_report_of_a_stuck_rank(ranks, width):
    text = whole(incident(ranks), width)
    assert_same(f"stuck_{ranks}_ranks_{width}.txt", text)
    assert text.startswith(
        "✗ rank 2 never entered all_reduce #31 — asleep at examples/rvq/train.py:141"
    )


def test_report_without_findings():
    assert shown(Verdict(question="why?")) == "✓ nothing failed\n\n    question  why?\n"
    assert shown(Verdict(question="", unseen=("dmesg",))).startswith(
        "✓ nothing failed in the available evidence\n"
    )


def test_suspects_without_a_root_are_not_ok():
    suspect = Finding(
        code="NET001",
        cause="slow-link",
        level=Level.WARNING,
        message="eth0 drops packets",
        confidence=0.4,
    )
    text = shown(Verdict(question="why?", suspects=(suspect,)))
    assert text.startswith("? no single root cause")
    assert "other causes  eth0 drops packets (NET001 slow-link, 40%)" in text


@pytest.mark.parametrize(
    ("level", "mark"),
    [(Level.ERROR, "✗"), (Level.WARNING, "⚠"), (Level.NOTE, "•"), (Level.UNKNOWN, "?")],
)
def test_each_level_has_its_mark(level, mark):
    claim = Finding(code="PERF001", cause="c", level=level, message="m")
    assert shown(Verdict(question="", root=claim)).startswith(f"{mark} m\n")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit_except_commands_and_paths(width):
    for line in whole(incident(1024), width).splitlines():
        assert cell_len(line) <= width or "$ " in line or REPORT in line
        assert line == line.rstrip()


def test_pipe_gets_no_escape_codes_and_no_frame():
    text = whole(incident(), 80)
    assert "\x1b" not in text
    assert not re.search("[╭│╰]", text)


def test_terminal_gets_colour_and_a_frame():
    text = shown(incident().verdict, Terminal())
    assert "\x1b[" in text
    assert "╭" in text.splitlines()[0]
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert plain.splitlines()[1].startswith("│ ✗ rank 2 never entered all_reduce #31")


def test_no_color_disables_all_escape_codes(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(incident().verdict, Terminal())


def test_dumb_terminal_gets_no_escape_codes(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(incident().verdict, Terminal())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "no-such-encoding"])
@pytest.mark.parametrize("tty", [True, False])
def test_encoding_without_the_symbols_gets_ascii(encoding, tty):
    text = shown(incident().verdict, Terminal(encoding, tty=tty))
    text.encode("ascii")
    assert "x rank 2 never entered all_reduce #31 - asleep at" in re.sub(r"\x1b\[[\d;]*m", "", text)


def test_real_ascii_stream_is_supported():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    render_verdict(incident().verdict, file=stream)
    assert stream.buffer.getvalue().startswith(b"x rank 2 never entered")


def test_control_characters_are_escaped():
    claim = Finding(
        code="SYNC002",
        cause="c",
        level=Level.ERROR,
        message="\x1b]0;owned\x07 [red]not markup[/red] :warning: line\r\nbreak",
        evidence=(Fact(text="a\tb\x1b[2J", origin="\udcff"),),
        remedies=(Remedy(text="r", command="rm \x1b[8mhidden"),),
        subject=Subject(file="\x9b31m.py"),
    )
    verdict = Verdict(
        question="q", root=claim, ruled_out=(RuledOut("\x1b[1m", "x"),), unseen=("\x1b",)
    )
    text = shown(
        verdict,
        html="/tmp/\x1b[3m/report.html",
        action="\x1b",
        groups=[RankGroup((1,), "\x1b", "\x1b")],
    )
    assert "\x1b" not in text
    assert "\\x1b]0;owned\\x07 [red]not markup[/red] :warning: line break" in text.splitlines()[0]
    assert "$ rm \\x1b[8mhidden" in text
    assert "\x9b" not in text


def test_long_lists_are_limited_with_a_note():
    facts = tuple(Fact(text=f"fact {number}", origin="o") for number in range(MAX_ROWS + 20))
    claim = Finding(code="SYNC002", cause="c", level=Level.ERROR, message="m", evidence=facts)
    text = shown(Verdict(question="q", root=claim))
    assert f"fact {MAX_ROWS - 1} " in text
    assert f"fact {MAX_ROWS} " not in text
    assert "… and 20 more" in text


def test_commands_keep_their_lines():
    remedy = Remedy(text="Do", command="export A=1\nholdfast run x.py")
    claim = Finding(code="SYNC002", cause="c", level=Level.ERROR, message="m", remedies=(remedy,))
    lines = [line.strip() for line in shown(Verdict(question="", root=claim)).splitlines()]
    assert "$ export A=1" in lines
    assert "$ holdfast run x.py" in lines


def test_report_is_one_write():
    class Counting(io.StringIO):
        writes = 0

        def write(self, text: str) -> int:
            self.writes += 1
            return super().write(text)

    file = Counting()
    render_verdict(incident().verdict, file=file)
    assert file.writes == 1


def test_default_is_the_current_stderr(capsys):
    render_verdict(Verdict(question=""))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "✓ nothing failed\n"


RICH_IS_ABSENT = (
    "import sys, holdfast.report.terminal, holdfast.report.sheet; sys.exit('rich' in sys.modules)"
)
RICH_IS_PRESENT = "import sys, holdfast.report.rich_layout; sys.exit('rich' in sys.modules)"


@pytest.mark.slow
@pytest.mark.parametrize(("program", "status"), [(RICH_IS_ABSENT, 0), (RICH_IS_PRESENT, 1)])
def test_rich_is_imported_only_for_printing(program, status):
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == status
