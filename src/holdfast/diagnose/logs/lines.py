"""Split a raw log line into its prefix (rank, host, time) and its message.

kubectl, srun, torchrun and torch's logging each add a prefix of their own. Each pattern of
``_PREFIXES`` matches one of them; up to ``MAX_PREFIXES`` are stripped. Terminal colors, carriage
returns and progress bars are removed.
"""

from __future__ import annotations

import calendar
import re
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.diagnose.logs import LogLine
from holdfast.diagnose.logs.learned_prefixes import LearnedPrefixes
from holdfast.diagnose.logs.rank_forms import marked_rank
from holdfast.diagnose.transports import CarriedLine

MAX_PREFIXES = 6
#: Longer lines are cut, which bounds the time that patterns take.
MAX_CHARACTERS = 8192
#: Year of times without one; only their order matters.
NO_YEAR = 1970

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
#: A tqdm bar, with or without a title: ``12%|███ | 3/25 [00:08<01:00,  2.1it/s, loss=1]``.
_BAR = re.compile(
    r"(?:[\w .:/-]{0,60}: )?\s{0,3}\d{1,3}%\|[^|]{0,200}\| *[\d.kMG]+/[\d.kMG?]+ \[[^\]]{0,120}\]"
)

#: A rank anywhere in a prefix that was learned.
_RANK_IN_PREFIX = re.compile(
    r"(?<!local )(?<!local-)\b(?:global_)?rank[ :=_#]{0,2}(\d{1,6})(?!\w|\.\d)", re.IGNORECASE
)

_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_DATE = r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)"
_NAMED_DAY = r"(?P<name>[A-Z][a-z]{2}) +(?P<day>\d{1,2})"
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>[.,]\d{1,9})?"
_ZONE = r"(?: ?(?P<zone>Z|[+-]\d\d:?\d\d))?"
_TIME = re.compile(rf"{_DATE}[T_ ]{_CLOCK}{_ZONE}")
#: Shards that inference engines print after the time.
_SHARD = r"(?: (?:DP\d{1,4} )?TP(?P<rank>\d{1,4})(?: EP\d{1,4})?)?"

#: Each matches one prefix. Groups: rank, host, task (``srun -l``), and those of a time.
_PREFIXES = tuple(
    re.compile(expression)
    for expression in (
        r"\s{0,8}\[rank[ :]{0,2}(?P<rank>\d{1,6})\]:? ?",
        r"\s{0,8}\[[Rr]ank (?P<rank>\d{1,6})\]:? ?",
        r"(?:\[RANK |RANK[ =_-]?|[Rr]ank[ =_-]?|[<(]rank )(?P<rank>\d{1,6})(?:\]|:| ?\||[>)]) ?",
        r"\[(?:global_)?rank[ :=]{1,2}(?P<rank>\d{1,6})\] ?",
        # mpirun and horovodrun; composer
        r"\[(?:1,)?(?P<rank>\d{1,6})\]<std(?:out|err)>: ?",
        r"rank(?P<rank>\d{1,6})\[\d{1,8}\]\[\w{1,40}\]: (?:[A-Z]{4,8}: )?",
        r"\[[\w./-]{1,200}\.(?:py|cc|cpp|cu|h|hpp|rs):\d{1,6}\] ?",
        # Open MPI prints at least five digits of a pid.
        r"\[(?P<host>[A-Za-z][\w.-]{0,120}):(?:\d{5,8}|(?P<rank>\d{1,4}))\] ?",
        r"\[(?:default|trainer|worker|main|default_role)_?(?P<rank>\d{1,6})\]: ?",
        r"\[pod/(?P<host>[\w.-]{1,253})/[\w.-]{1,253}\] ?",
        r"\((?:Vllm)?Worker(?:Process)?(?: rank=|_TP)(?P<rank>\d{1,6})\b[^)]{0,40} pid=\d+\) ?",
        r"\((?P<actor>[A-Za-z_][\w.:]{0,80}) pid=\d+(?:, ip=(?P<host>[\w.:]{1,60}))?\) ?",
        r"(?P<host>[A-Za-z][A-Za-z0-9_.-]{0,60}-?\d[\w.-]{0,60}): (?=\S)",
        r" {0,4}(?P<task>\d{1,5}): (?=[^\d\s]| {2})",
        r"\s{0,4}\| ",
        # docker compose; loguru; hydra
        r"[A-Za-z][\w.-]{0,80}[-_]\d{1,4} {1,20}\| ",
        r"(?:DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL) {0,5}\| [\w.<>:-]{1,200} - ",
        r"\[[\w.]{1,80}\]\[(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\](?: -)? ",
        # cat -n; names of files by grep; ts; a stream of CloudWatch; labels of Loki; syslog
        r" {0,8}\d{1,9}\t",
        r"(?:[\w.-]{0,80}/){1,20}[\w.-]{1,80}\.(?:out|err|log|txt):(?:\d{1,9}:)?",
        r"(?:\d\d:\d\d:\d\d(?:\.\d{1,9})?|1[5-9]\d{8}\.\d{1,9}) ",
        r"[\w.-]{1,80}/[\w./-]{1,120}/[0-9a-f]{6,64} ",
        r'\{\w{1,40}="[^}\n]{0,400}\} ',
        rf"<\d{{1,3}}>1 {_DATE}[T_ ]{_CLOCK}{_ZONE} (?P<host>\S{{1,120}})(?: \S{{1,120}}){{4}} ",
        r"\[\d{1,9}\] (?=\[)",
        r"\d{1,9}:(?=\[(?:rank|default)\d)",
        r"std(?:out|err): ",
        r"[Rr]ank[ _:=-]?(?P<rank>\d{1,6}) - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ",
        r"[\w.-]{1,60} - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ",
        r"(?P<host>[\w.-]{1,120}):\d{1,8}:\d{1,8} \[(?P<device>\d{1,3})\] ",
        rf"\[?{_DATE}[T_ ]{_CLOCK}{_ZONE}{_SHARD}\]?(?: - |[,:]? ?)",
        rf"\[?(?:[A-Z][a-z]{{2}} )?{_NAMED_DAY} {_CLOCK}(?: (?P<year>\d{{4}}))?\]? ",
        rf"\[?[WEIF](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK} (?:\d+ )?[\w./-]{{1,300}}:\d+\]:? ?",
        rf"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} ",
        r"\[(?P<uptime>\s{0,6}\d{1,9}\.\d{6})\] ",
        r"\[PG (?:ID )?\w+ (?:PG )?GUID [^\]]{0,80}?Rank (?P<rank>\d{1,6})\] {0,2}",
    )
)


#: The first of them that matches, by the number of the empty group at its end: 20 times as fast as
#: one by one. Before such a group, the first character alone excludes most of them.
_ANY_PREFIX = re.compile(
    "|".join(f"{re.sub('[(][?]P<[a-z]+>', '(?:', one.pattern)}()" for one in _PREFIXES)
)


class LinePrefix(msgspec.Struct, frozen=True, gc=False):
    """The prefixes of a line, and the ``text`` after them."""

    text: str
    rank: int | None = None
    host: str = ""
    time: float | None = None


def clean_line(raw: bytes) -> str:
    """Decode the line; remove colors, progress bars and text overwritten by a carriage return."""
    data = raw.lstrip(b"\0")[: 4 * MAX_CHARACTERS]
    text = data.decode("utf-8", errors="replace").rstrip("\n")
    if text.isprintable():
        return (_BAR.sub("", text) if "%|" in text else text)[:MAX_CHARACTERS]
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = next(
            (part for part in reversed(parts) if not _BAR.fullmatch(part.strip())),
            parts[-1] if parts else "",
        )
    if "%|" in text:
        text = _BAR.sub("", text)
    return _CONTROL.sub("", text)[:MAX_CHARACTERS]


class LineParser:
    """Parses the lines of one log; ``rank`` is that of lines that name none."""

    def __init__(self, source: str, rank: int | None = None) -> None:
        self._source, self._rank = source, rank
        self._learned = LearnedPrefixes()

    def parse(self, raw: bytes, number: int, origin: CarriedLine) -> LogLine:
        """Return line ``number``, which comes from ``origin``."""
        prefix = strip_prefixes(clean_line(raw))
        carried, text = self._learned.split(prefix.text)
        if carried:
            prefix = _add_outer(prefix, carried, strip_prefixes(text))
        ranks = (prefix.rank, origin.rank, self._rank)
        return LogLine(
            prefix.text,
            self._source,
            number,
            rank=next((one for one in ranks if one is not None), None),
            host=origin.host or prefix.host,
            time=prefix.time if origin.time is None else origin.time,
            file_line=origin.number if origin.number != number else 0,
        )


def _add_outer(outer: LinePrefix, carried: str, inner: LinePrefix) -> LinePrefix:
    """Return ``inner`` with what precedes it; ``carried`` has a form of this log's own."""
    time, found = outer.time, _TIME.search(carried)
    if time is None:
        time = _parse_time(found.groupdict()) if found is not None else inner.time
    rank = inner.rank if inner.rank is not None else outer.rank
    if rank is None and (named := _RANK_IN_PREFIX.search(carried)) is not None:
        rank = int(named[1])
    return LinePrefix(inner.text, rank, outer.host or inner.host, time)


def parse_line(raw: bytes, source: str, number: int, *, rank: int | None = None) -> LogLine:
    """Return line ``number`` of ``source``; ``rank`` is used if the line itself names none."""
    return LineParser(source, rank).parse(raw, number, CarriedLine(number, b""))


def strip_prefixes(text: str) -> LinePrefix:
    """Strip the prefixes; the innermost rank and the outermost time and host count.

    The number that ``srun -l`` prints is the rank if nothing else names one.
    """
    rank: int | None = None
    task: int | None = None
    host, time = "", None
    for _ in range(MAX_PREFIXES):
        which = _ANY_PREFIX.match(text)
        if which is None:
            break
        form = _PREFIXES[(which.lastindex or 1) - 1]
        if form.groups and (found := form.match(text)) is not None:
            groups = found.groupdict()
            rank = int(groups["rank"]) if groups.get("rank") else rank
            task = int(groups["task"]) if groups.get("task") else task
            host = host or groups.get("host") or ""
            time = time if time is not None else _parse_time(groups)
        text = text[which.end() :]
    if rank is None:
        named = marked_rank(text)
        rank = task if named is None else named
    return LinePrefix(text, rank, host, time)


def _parse_time(groups: dict[str, Any]) -> float | None:
    """Return Unix seconds, assuming UTC without a zone."""
    if groups.get("uptime"):
        return float(groups["uptime"])
    if not groups.get("hour"):
        return None
    month = _MONTHS.get(groups.get("name") or "", int(groups.get("month") or 0))
    day, hour = int(groups["day"]), int(groups["hour"])
    minute, second = int(groups["minute"]), int(groups["second"])
    year = int(groups.get("year") or NO_YEAR)
    is_date = year >= 1 and 1 <= month <= 12 and 1 <= day <= 31
    if not (is_date and hour < 24 and minute < 60 and second <= 60):
        return None
    seconds = _day_start(year, month, day) + hour * 3600 + minute * 60 + second
    fraction = float("0" + (groups.get("fraction") or ".0").replace(",", "."))
    return seconds + fraction - _zone_offset(groups.get("zone"))


@lru_cache(maxsize=64)
def _day_start(year: int, month: int, day: int) -> int:
    return calendar.timegm((year, month, day, 0, 0, 0))


def _zone_offset(zone: str | None) -> float:
    if not zone or zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
