"""Lines that no pattern knows: what is new before the end, compared with what was printed before.

Lines are compared by template, as Drain does: words that contain digits, paths and quoted texts are
variable, and two lines have one template if most of the other words agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from holdfast.diagnose.log_rules.log_index import NOISE_PREFIX, LogIndex, position
from holdfast.diagnose.logs import LogLine, LogSample
from holdfast.diagnose.logs.lines import parse_line

#: A change is within this many lines before the first report of the failure, or the log's end.
NEAR_LINES = 40
#: Share of equal words of one template (Drain's default is 0.4, for lines of the same first words).
MIN_SIMILARITY = 0.6
MAX_WORDS, MAX_TEMPLATES = 40, 4096
#: Reports that ranks failed; the reason is above.
_REPORTS = frozenset(
    """
    launcher-ends-ranks rank-aborts exit-code failed-code root-marker process-ended slurm-task
    mpi-signal slurm-cancelled worker-failed
    """.split()
)
#: Lines of these are no reason.
_KNOWN = frozenset({"progress", "pace", "frame", "traceback", "finished", "notice"}) | _REPORTS
_VARIABLE = re.compile(r"'[^']*'|\"[^\"]*\"|\S*[\d/]\S*")
_SEVERE = re.compile(
    r"\b(?:error|fatal|fail(?:ed|ure|ing)?|abort\w*|panic|critical|cannot|can't|could not|unable"
    r"|denied|not (?:permitted|supported|available|found)|invalid|exceed\w*|mismatch\w*|refus\w+"
    r"|missing|corrupt\w*|assert\w*"
    r"|unsupported|unexpected|killed|crash\w*|dead)\b|\w(?:Error|_ERROR\w*|Exception)\b|\bE\d{4} ",
    re.IGNORECASE,
)
#: Numbers of errors, and error rates.
_NO_ERROR = re.compile(
    r"\b(?:0|no|not an) (?:errors?|fail\w+)\b|\berrors?[:=] ?(?:0|none|null)\b"
    r"|\berrors?(?: rate)?[:=]? ?\d+\.\d",
    re.IGNORECASE,
)
#: Levels of a logger below an error; the prefix that is stripped may contain them.
_HARMLESS_LEVEL = re.compile(rb"\b(?:INFO|DEBUG|TRACE|NOTICE)\b|\b[ID]\d{4} \d\d:")
#: A logger's level of a line that ended nothing.
_WARNING_LEVEL = re.compile(rb"\bWARN(?:ING)?\b|\[W |\bW\d{4} \d\d:")
#: A program that prints so many other lines after an error did not end by it.
MIN_LATER = 2
#: Frames, source lines below them, and rules of tables.
_PART_OF_BLOCK = re.compile(r"\s|frame #|#\d+ |[=\-*_+|#]{3}|\W*$")

Template = tuple[str, ...]


@dataclass(frozen=True)
class ChangedLine:
    """A line that is new near the end; ``severe``: it reads like an error."""

    line: LogLine
    severe: bool
    one_rank: bool


def find_changes(index: LogIndex) -> list[ChangedLine]:
    """Return what is new near the end of the logs, in the order of sources and lines."""
    known = {
        position(signal)
        for signal in index.facts.signals
        if signal.name in _KNOWN or signal.name.startswith(NOISE_PREFIX)
    }
    usual = _TemplateSet()
    near: list[LogLine] = []
    reports = _first_reports(index)
    for sample in index.facts.samples:
        before, last = _split(sample, reports.get(sample.source))
        near += [line for line in last if (line.source, line.number) not in known]
        for line in before:
            usual.add(_template(line.text))
    new = [line for line in near if _is_message(line.text) and not usual.has(_template(line.text))]
    where: dict[Template, set[tuple[str, int | None]]] = {}
    for line in new:
        where.setdefault(_template(line.text), set()).add((line.source, line.rank))
    several = len({(line.source, line.rank) for line in near}) > 2
    return [
        ChangedLine(line, is_severe(line.text), several and len(where[_template(line.text)]) == 1)
        for line in {(_template(line.text), line.rank): line for line in new}.values()
    ]


def is_passed_over(index: LogIndex, line: LogLine) -> bool:
    """Return whether the program called ``line`` a warning, or went on printing after it.

    That shows little where a launcher reports a failure, but enough where nothing else does.
    """
    later, stepping = 0, index.ranks("progress", "pace")
    for sample in index.facts.samples:
        if sample.source != line.source:
            continue
        for number, raw in enumerate(sample.tail.split(b"\n"), sample.lines_before + 1):
            if number == line.number and _WARNING_LEVEL.search(raw):
                return True
            if number > line.number and raw.strip():
                one = parse_line(raw, sample.source, number, rank=sample.rank)
                # The steps of rank 0 stand for ranks that log none.
                is_own = one.rank in (None, line.rank) or line.rank not in stepping
                later += is_own and _is_message(one.text) and not is_severe(one.text)
    return later >= MIN_LATER


def is_severe(text: str) -> bool:
    """Return whether a line reads like an error."""
    return bool(_SEVERE.search(text)) and not _NO_ERROR.search(text)


def _first_reports(index: LogIndex) -> dict[str, int]:
    """Return the line of the first report of a failure after the last step, by log."""
    steps, reports = dict[str, int](), dict[str, int]()
    for line in (one.line for one in index.all("progress", "pace")):
        steps[line.source] = max(line.number, steps.get(line.source, 0))
    for line in (one.line for one in index.facts.signals if one.name in _REPORTS):
        if line.number > steps.get(line.source, 0):
            reports.setdefault(line.source, line.number)
    return reports


def _split(sample: LogSample, report: int | None) -> tuple[list[LogLine], list[LogLine]]:
    """Return the lines before the last ones, and the last ones before the report."""
    lines = [*_lines(sample, sample.head, 0), *_tail_lines(sample)]
    end = report if report is not None else (lines[-1].number + 1 if lines else 0)
    last = [line for line in lines if end - NEAR_LINES <= line.number < end]
    return [line for line in lines if line.number < end - NEAR_LINES], last


def tail_lines(sample: LogSample) -> list[LogLine]:
    """Return all lines in the end of a log, blank ones excepted."""
    numbered = enumerate(sample.tail.split(b"\n"), sample.lines_before + 1)
    lines = [
        parse_line(raw, sample.source, number, rank=sample.rank)
        for number, raw in numbered
        if raw.strip()
    ]
    return lines[1:] if sample.cut else lines


def _tail_lines(sample: LogSample) -> Iterator[LogLine]:
    lines = _lines(sample, sample.tail, sample.lines_before)
    if sample.cut:
        next(lines, None)
    yield from lines


def _lines(sample: LogSample, data: bytes, before: int) -> Iterator[LogLine]:
    for number, raw in enumerate(data.split(b"\n"), before + 1):
        if raw.strip() and not _HARMLESS_LEVEL.search(raw):
            yield parse_line(raw, sample.source, number, rank=sample.rank)


def _is_message(text: str) -> bool:
    return not _PART_OF_BLOCK.match(text) and sum(map(str.isalpha, text)) > 3


def _template(text: str) -> Template:
    return tuple(_VARIABLE.sub("*", text).split()[:MAX_WORDS])


class _TemplateSet:
    """Templates, by length and first word."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], list[Template]] = {}
        self._size = 0

    def add(self, words: Template) -> None:
        """Add a template, unless a similar one is known."""
        if words and self._size < MAX_TEMPLATES and not self.has(words):
            self._groups.setdefault((len(words), words[0]), []).append(words)
            self._size += 1

    def has(self, words: Template) -> bool:
        """Return whether a similar template is known."""
        group: Sequence[Template] = self._groups.get((len(words), words[0]), ()) if words else ()
        return any(_similarity(words, known) >= MIN_SIMILARITY for known in group)


def _similarity(one: Template, other: Template) -> float:
    pairs: Iterable[tuple[str, str]] = zip(one, other, strict=True)
    return sum(a == b for a, b in pairs) / len(one)
