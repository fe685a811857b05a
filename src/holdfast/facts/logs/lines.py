"""Takes a raw line of a log apart: who wrote it and when, and what is left is what was said.

Many writers stand in front of a line, one inside the other: kubectl, srun, torchrun, torch's own logging. Each row of
``_PREFIXES`` takes one of them off; at most ``MOST_PREFIXES`` are taken. Terminals leave colours, carriage returns and
progress bars, which are dropped.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass

from holdfast.facts.logs import Line

MOST_PREFIXES = 6
#: Longer lines are cut: no message of interest is longer, and no expression shall meet megabytes.
MOST_CHARACTERS = 8192
#: For times that name no year: the order within the log counts.
NO_YEAR = 1970

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
#: A tqdm bar: ``12%|███ | 3/25 [00:08<01:00,  2.1it/s, loss=1]``, with or without a title in front.
_BAR = re.compile(r"(?:[\w .:/-]{0,60}: )?\s{0,3}\d{1,3}%\|[^|]{0,200}\| *[\d.kMG]+/[\d.kMG?]+ \[[^\]]{0,120}\]")

#: Behind what somebody else's prefix is.
_NAMED_LATER = re.compile(r"\[rank[ :=]{0,2}(\d{1,6})\]", re.IGNORECASE)

_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}
_CLOCK = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?P<fraction>[.,]\d{1,9})?"
_ZONE = r"(?: ?(?P<zone>Z|[+-]\d\d:?\d\d))?"
#: What engines that split a model over GPUs write behind the time.
_SHARD = r"(?: (?:DP\d{1,4} )?TP(?P<rank>\d{1,4})(?: EP\d{1,4})?)?"

#: Each takes off one prefix. Groups: rank, host, and those of a time.
_PREFIXES = tuple(
    re.compile(expression)
    for expression in (
        r"\s{0,8}\[rank[ :]{0,2}(?P<rank>\d{1,6})\]:? ?",
        r"\s{0,8}\[[Rr]ank (?P<rank>\d{1,6})\]:? ?",
        r"(?:\[RANK |RANK=?|rank=?|Rank )(?P<rank>\d{1,6})(?:\]|:|\|) ?",
        r"\[1,(?P<rank>\d{1,6})\]<std(?:out|err)>: ?",
        r"\[[\w./-]{1,200}\.(?:py|cc|cpp|cu|h|hpp|rs):\d{1,6}\] ?",
        r"\[(?P<host>[A-Za-z][\w.-]{0,120}):(?P<rank>\d{1,6})\] ?",
        r"\[(?:default|trainer|worker|main|default_role)_?(?P<rank>\d{1,6})\]: ?",
        r"\[pod/(?P<host>[\w.-]{1,253})/[\w.-]{1,253}\] ?",
        r"\((?:Vllm)?Worker(?:Process)?(?: rank=|_TP)(?P<rank>\d{1,6})\b[^)]{0,40} pid=\d+\) ?",
        r"\((?P<actor>[A-Za-z_][\w.:]{0,80}) pid=\d+(?:, ip=(?P<host>[\w.:]{1,60}))?\) ?",
        r"(?P<host>[A-Za-z][A-Za-z0-9_.-]{0,60}-?\d[\w.-]{0,60}): (?=\S)",
        r" {0,4}(?P<task>\d{1,5}): (?=[^\d\s]| {2})",
        r"\s{0,4}\| ",
        r"\[\d{1,9}\] (?=\[)",
        r"\d{1,9}:(?=\[(?:rank|default)\d)",
        r"std(?:out|err): ",
        r"[\w.-]{1,60} - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ",
        r"(?P<host>[\w.-]{1,120}):\d{1,8}:\d{1,8} \[(?P<device>\d{1,3})\] ",
        rf"\[?(?P<year>\d{{4}})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T_ ]{_CLOCK}{_ZONE}{_SHARD}\]?(?: - |[,:]? ?)",
        rf"\[?(?:[A-Z][a-z]{{2}} )?(?P<name>[A-Z][a-z]{{2}}) +(?P<day>\d{{1,2}}) {_CLOCK}(?: (?P<year>\d{{4}}))?\]? ",
        rf"\[?[WEIF](?P<month>\d\d?)(?P<day>\d\d) {_CLOCK} (?:\d+ )?[\w./-]{{1,300}}:\d+\]:? ?",
        rf"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) (?P<month>\d\d)-(?P<day>\d\d) {_CLOCK} ",
        r"\[(?P<uptime>\s{0,6}\d{1,9}\.\d{6})\] ",
        r"\[PG (?:ID )?\w+ (?:PG )?GUID [^\]]{0,80}?Rank (?P<rank>\d{1,6})\] {0,2}",
    )
)


@dataclass(frozen=True)
class Reading:
    """What stood in front of a line."""

    text: str
    rank: int | None = None
    host: str = ""
    time: float | None = None


def clean(raw: bytes) -> str:
    """The line as a person sees it: decoded, without colours and bars, the last that a carriage return left."""
    text = _ESCAPES.sub("", raw.lstrip(b"\0")[: 4 * MOST_CHARACTERS].decode("utf-8", errors="replace"))
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = next((part for part in reversed(parts) if not _BAR.fullmatch(part.strip())), parts[-1] if parts else "")
    if "%|" in text:
        text = _BAR.sub("", text)
    return _CONTROL.sub("", text.rstrip("\n"))[:MOST_CHARACTERS]


def parse(raw: bytes, source: str, number: int, *, rank: int | None = None, year: int = NO_YEAR) -> Line:
    """The line ``number`` of ``source``; ``rank`` is what the file's name tells, ``year`` for times without one."""
    found = take_off(clean(raw), year=year)
    known = found.rank if found.rank is not None else rank
    return Line(found.text, source, number, rank=known, host=found.host, time=found.time)


def take_off(text: str, *, year: int = NO_YEAR) -> Reading:
    """Take the prefixes off; the innermost rank wins, the outermost time and host.

    The number that ``srun -l`` puts in front counts as the rank where nothing else names one.
    """
    rank: int | None = None
    task: int | None = None
    host, time = "", None
    for _ in range(MOST_PREFIXES):
        found = next((hit for prefix in _PREFIXES if (hit := prefix.match(text))), None)
        if found is None:
            break
        said = found.groupdict()
        rank = int(said["rank"]) if said.get("rank") else rank
        task = int(said["task"]) if said.get("task") else task
        host = host or said.get("host") or ""
        time = time if time is not None else _time(said, year)
        text = text[found.end() :]
    if rank is None:
        named = _NAMED_LATER.search(text, 0, 200)
        rank = int(named[1]) if named else task
    return Reading(text, rank, host, time)


def _time(said: dict[str, str | None], year: int) -> float | None:
    """Unix seconds; where no zone is named, as if in UTC."""
    if said.get("uptime"):
        return float(said["uptime"] or 0)
    if not said.get("hour"):
        return None
    month = _MONTHS.get(said.get("name") or "", int(said.get("month") or 0))
    date = (int(said.get("year") or year), month, int(said["day"] or 0))
    clock = tuple(int(said[part] or 0) for part in ("hour", "minute", "second"))
    if not (1 <= date[1] <= 12 and 1 <= date[2] <= 31 and clock[0] < 24 and clock[1] < 60 and clock[2] <= 60):
        return None
    seconds = calendar.timegm((*date, *clock))
    return seconds + float("0" + (said.get("fraction") or ".0").replace(",", ".")) - _offset(said.get("zone"))


def _offset(zone: str | None) -> float:
    if not zone or zone == "Z":
        return 0.0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
