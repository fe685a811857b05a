"""Work of one rank, mostly rank 0, for which the others waited until they timed out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.causes.checkpoint.checkpoint_io_slow_timeout import CHECKPOINT_IO_SLOW_TIMEOUT
from holdfast.causes.performance.rank0_long_work_timeout import RANK0_LONG_WORK_TIMEOUT
from holdfast.diagnose.log_rules.candidates import CauseCandidate, lines_of
from holdfast.diagnose.log_rules.log_index import LogIndex, comes_after, is_later, position
from holdfast.diagnose.log_rules.rank_inference import rank_of_line
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.log_rules.unknown_lines import tail_lines
from holdfast.diagnose.logs import LoggedSignal

#: A rank reports that it waited in vain.
_WAITS = ("watchdog-timeout", "socket-timeout", "store-key-timeout", "gloo-timeout")
#: What a rank does outside of collectives. By convention rank 0 does it, and logs it.
_WORK = ("saving", "working", "preparing", "reading-bar", "evaluation")
#: Work of at least this share of the timeout explains it.
_SHARE = 0.6
_TIMEOUT = re.compile(r"[Tt]imeout\(ms\)=(\d{1,12})|after (\d{1,12}) ?ms")
_SAVING = re.compile(r"[Ss]av(?:e|ing)|[Ww]rit|[Cc]heckpoint|ckpt|[Uu]pload")
#: How much of the work is done.
_COUNTED = re.compile(
    r"(?<![\w./:-])(?:(?P<done>\d{1,9}) ?(?:/|of) ?(?P<total>\d{1,9})|(?P<percent>\d{1,2}) "
    r"?%)(?![\w/:-])"
)
#: A step of the training in an unknown form.
_OF_STEP = re.compile(r"loss|\blr\b|learning.rate|grad|tokens/s", re.IGNORECASE)
_MAX_LINES = 8


def find_long_work(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield work that lasted as long as the timeout, or that a rank did when the others waited."""
    waits = index.all(*_WAITS)
    if not waits:
        return
    found = [*_find_reported_duration(index, waits), *_find_last_work(index, waits)]
    yield from found or _find_unknown_work(index, waits)


def _find_reported_duration(
    index: LogIndex, waits: Sequence[LoggedSignal]
) -> Iterable[CauseCandidate]:
    """Yield work that a rank reports to have lasted nearly as long as the timeout, or longer."""
    for one in index.all("took-long"):
        seconds = float(one.fields["seconds"]) * (60 if "minutes" in one.fields else 1)
        rank = _working_rank(index, one, waits)
        if rank is not None and seconds >= _SHARE * _timeout_of(waits):
            yield _candidate(one, waits, rank, 0.88, f"worked for {seconds:,.0f} s")
            return


def _find_last_work(index: LogIndex, waits: Sequence[LoggedSignal]) -> Iterable[CauseCandidate]:
    """Yield the work that was logged last before the first timeout, without a later step."""
    works = [one for one in index.all(*_WORK) if not comes_after(one, waits[0])]
    work = next(reversed(works), None)
    if work is None or _is_over(index, work, waits[0]):
        return
    rank = _working_rank(index, work, waits)
    if rank is not None:
        yield _candidate(work, waits, rank, 0.72, "was still working")


def _find_unknown_work(index: LogIndex, waits: Sequence[LoggedSignal]) -> Iterable[CauseCandidate]:
    """Yield unfinished work of any kind: the last line before the wait counts, and is not done."""
    wait = waits[0]
    steps = {position(one) for one in index.all("progress", "pace", "finished")}
    for sample in index.facts.samples:
        if sample.source != wait.line.source:
            continue
        last = next(
            (line for line in reversed(tail_lines(sample)) if line.number < wait.line.number), None
        )
        counted = _COUNTED.search(last.text) if last is not None else None
        if last is None or counted is None or _is_done(counted) or _OF_STEP.search(last.text):
            continue
        if (last.source, last.number) in steps:
            continue
        work = LoggedSignal("working", last)
        rank = _working_rank(index, work, waits)
        if rank is not None:
            yield _candidate(work, waits, rank, 0.6, "was still working")


def _is_done(counted: re.Match[str]) -> bool:
    """Return whether a count such as ``7/12`` or ``40%`` has reached its end."""
    done, total = int(counted["done"] or counted["percent"]), int(counted["total"] or 100)
    return not 0 <= done < total


def _is_over(index: LogIndex, work: LoggedSignal, wait: LoggedSignal) -> bool:
    """Return whether a step or an end follows the work, or it began after the wait."""
    names = {work.line.source, wait.line.source}
    later = (one for one in index.all("progress", "pace", "finished") if one.line != work.line)
    if any(one.line.source in names and is_later(one.line, work.line) for one in later):
        return True
    return is_later(wait.line, work.line) is False


def _working_rank(index: LogIndex, work: LoggedSignal, waits: Sequence[LoggedSignal]) -> int | None:
    """Return the rank that worked: none of those that waited; without a rank in the line, 0."""
    waiting = {rank_of_line(one.line) for one in waits} | index.ranks("unique-id")
    rank = rank_of_line(work.line) or 0
    return None if rank in waiting else rank


def _timeout_of(waits: Sequence[LoggedSignal]) -> float:
    """Return the shortest timeout that the lines state, in seconds; 10 minutes by default."""
    found = (_TIMEOUT.search(one.line.text) for one in waits)
    times = [int(match[1] or match[2]) / 1000 for match in found if match is not None]
    return min(times, default=600.0)


def _candidate(
    work: LoggedSignal, waits: Sequence[LoggedSignal], rank: int, confidence: float, how: str
) -> CauseCandidate:
    cause, what = RANK0_LONG_WORK_TIMEOUT, work.line.text.strip()[:80]
    if work.name == "saving" or (work.name == "took-long" and _SAVING.search(work.line.text)):
        cause = CHECKPOINT_IO_SLOW_TIMEOUT
    message = f"rank {rank} {how} while the other ranks waited for it until they timed out: {what}"
    lines = (work.line, *lines_of(waits, _MAX_LINES))
    return CauseCandidate(cause.name, Tier.WAITING, confidence, message, lines, rank)
