"""The clocks of several logs: the times of all lines on one clock, as far as the logs show it.

Hosts and containers write different times: their clocks differ, or their time zones do. Events that
several logs contain, such as the same step or the same line of a launcher, show the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from msgspec.structs import replace

from holdfast.diagnose.logs import LogFacts, LoggedSignal, LogLine

#: Smaller differences are within the accuracy of NTP and of the events: the clocks are equal.
MIN_OFFSET_S = 2.0
#: One coincidence is no proof: so many shared events show a difference.
MIN_SHARED = 2
#: Clocks differ by little, or by time zones; other differences are those of two runs.
MAX_SKEW_S, ZONE_S = 60.0, 900.0
#: Signals whose text is the same in several logs if it is the same event.
_SHARED_TEXTS = frozenset({"launcher-ends-ranks", "exit-code", "slurm-cancelled", "slurm-task"})

Event = tuple[str, str | int]


@dataclass(frozen=True)
class AlignedLogs:
    """The facts with all times on one clock, except in the ``unaligned`` logs.

    ``unaligned`` are those, of several with times, that share no event with the others.
    """

    facts: LogFacts
    unaligned: frozenset[str] = frozenset()


def align_clocks(facts: LogFacts) -> AlignedLogs:
    """Return the facts on one clock, in the order of sources and line numbers.

    So the verdict does not depend on the order in which the files were read.
    """
    events, timed = _events_by_log(facts)
    reference = max(events, key=lambda name: (len(events[name]), name), default="")
    offsets: dict[str, float] = {}
    unaligned = set()
    for name in timed - {reference}:
        shared = events.get(name, {}).keys() & events.get(reference, {}).keys()
        if len(shared) < MIN_SHARED:
            unaligned.add(name)
            continue
        offset = median(events[reference][one] - events[name][one] for one in shared)
        if abs(offset - ZONE_S * round(offset / ZONE_S)) > MAX_SKEW_S:
            unaligned.add(name)
        elif abs(offset) >= MIN_OFFSET_S:
            offsets[name] = offset
    return AlignedLogs(
        _with_lines(facts, partial(_shift, offsets)),
        frozenset(unaligned if len(timed) > 1 else ()),
    )


def _events_by_log(facts: LogFacts) -> tuple[dict[str, dict[Event, float]], set[str]]:
    """Return the time of the first line about each event, by log; and the logs with times."""
    events: dict[str, dict[Event, float]] = {}
    timed = {one.line.source for one in facts.tracebacks if one.line.time is not None}
    for signal in facts.signals:
        line = signal.line
        if line.time is None:
            continue
        timed.add(line.source)
        event = _event(signal)
        if event is not None:
            events.setdefault(line.source, {}).setdefault(event, line.time)
    return events, timed


def _event(signal: LoggedSignal) -> Event | None:
    step = signal.fields.get("step")
    if step is not None:
        return "step", step if isinstance(step, int) else str(step)
    return ("line", signal.line.text.strip()) if signal.name in _SHARED_TEXTS else None


def _shift(offsets: dict[str, float], line: LogLine) -> LogLine:
    offset = offsets.get(line.source, 0.0)
    return line if line.time is None or not offset else replace(line, time=line.time + offset)


def _with_lines(facts: LogFacts, change: Callable[[LogLine], LogLine]) -> LogFacts:
    """Return the facts, sorted, with changed lines."""
    signals = sorted(facts.signals, key=lambda one: (one.line.source, one.line.number, one.order))
    tracebacks = sorted(facts.tracebacks, key=lambda one: (one.line.source, one.line.number))
    return replace(
        facts,
        signals=tuple(
            replace(one, line=change(one.line), order=order) for order, one in enumerate(signals)
        ),
        tracebacks=tuple(replace(one, line=change(one.line)) for one in tracebacks),
        ranks=dict(sorted(facts.ranks.items())),
    )
