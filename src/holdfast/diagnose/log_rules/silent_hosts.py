"""Logs of several hosts without an error: one stops within a measurement, another has no output.

The ranks of a host may print nothing (often only rank 0 prints), so that its log has only the lines
of its launcher. It still says when that host joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holdfast.causes.network.mtu_black_hole import MTU_BLACK_HOLE
from holdfast.causes.remedies import automatic, disruptive
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.core.text import format_duration, pluralize
from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.log_index import LogIndex
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.log_rules.unknown_lines import tail_lines
from holdfast.diagnose.logs import LogLine

#: Complete measurements before the one that did not end.
MIN_COMPLETE = 2
#: A host whose launcher started this much later is late.
LATE_S = 5.0
#: A log with only lines of a launcher is not larger.
MAX_BYTES = 8192
_OF_LAUNCHER = re.compile(
    r"[\s*]*$|.*(?:Setting OMP_NUM_THREADS|torch[./]distributed[./](?:run|launch)\b)"
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
#: Units that change along a series: sizes, rates and times.
_UNIT = re.compile(r"\b(?:[KMGT]i?)?(B(?:/s)?)\b|\b(?:[mun]|µ)?(s)(?:ec\w*)?\b")
_SIZE = re.compile(r"# ?(?:B|bytes|elements)\b(?!/s)")
_RESULT = re.compile(r"# ?(?:B/s|s|Gbps|Gbit/s)(?=\W|$)")
_REMEDIES = (
    disruptive(
        "Run it under the watcher on all hosts: it names the rank and the call during the hang.",
        "holdfast run --on-hang report SCRIPT",
    ),
    automatic(
        "Measure the connections between the hosts, with small and large packets.",
        "holdfast check --nnodes N --rdzv-endpoint HOST:PORT",
    ),
)


def launcher_only_logs(index: LogIndex) -> dict[str, LogLine]:
    """Return the logs that have only lines of a launcher, with a line that shows its start."""
    starts: dict[str, LogLine] = {}
    for signal in index.facts.signals:
        if signal.name == "noise-omp":
            starts.setdefault(signal.line.source, signal.line)
    return {
        sample.source: starts[sample.source]
        for sample in index.facts.samples
        if sample.source in starts
        and len(sample.tail) <= MAX_BYTES
        and all(_OF_LAUNCHER.match(line.text) for line in tail_lines(sample))
    }


def find_stopped_measurement(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a log that ends within a measurement while the ranks of another host print nothing."""
    silent = launcher_only_logs(index)
    if not silent or "finished" in index:
        return
    for sample in index.facts.samples:
        lines = [line for line in tail_lines(sample) if not _OF_LAUNCHER.match(line.text)]
        complete = _complete_before_end(lines)
        if complete < MIN_COMPLETE:
            continue
        last = lines[-1]
        message = (
            f"{sample.source} ends within a measurement ({last.text.strip()!r}) after "
            f"{pluralize(complete, 'complete one')}, without an error; "
            f"{_describe_silent(index, sample.source, silent)}: the hosts joined, and a call "
            "between them does not end"
        )
        cited = (last, *silent.values())
        yield CauseCandidate(
            RANK_MISSING_COLLECTIVE.name, Tier.SILENCE, 0.4, message, cited, remedies=_REMEDIES
        )
        if _SIZE.search(_shape(last.text)):
            larger = "smaller messages passed between the hosts, and a larger one did not"
            yield CauseCandidate(MTU_BLACK_HOLE.name, Tier.SILENCE, 0.25, larger, (last,))
        return


def _describe_silent(index: LogIndex, talking: str, silent: dict[str, LogLine]) -> str:
    """Return which logs have no output of ranks, and how much later their launchers started."""
    began = next(
        (
            one.line.time
            for one in index.facts.signals
            if one.line.source == talking and one.line.time is not None
        ),
        None,
    )
    texts = []
    for source, line in silent.items():
        late_s = line.time - began if line.time is not None and began is not None else 0.0
        late = f" and started {format_duration(late_s)} later" if late_s >= LATE_S else ""
        texts.append(f"{source} has only lines of its launcher{late}")
    return ", ".join(texts)


def _complete_before_end(lines: Sequence[LogLine]) -> int:
    """Return the complete measurements before an incomplete one at the end; 0 if there is none.

    Incomplete: the last line is the beginning of what earlier ones say, or names a size without a
    result.
    """
    shapes = [_shape(line.text) for line in lines]
    if not shapes or "#" not in shapes[-1]:
        return 0
    last = shapes.pop()
    begun = sum(shape != last and shape.startswith(f"{last} ") for shape in shapes)
    if begun:
        return begun
    if not _SIZE.search(last) or _RESULT.search(last):
        return 0
    pairs = zip(shapes, [*shapes[1:], last], strict=True)
    return sum(
        bool(_SIZE.search(shape)) and bool(_RESULT.search(shape) or _RESULT.search(after))
        for shape, after in pairs
    )


def _shape(text: str) -> str:
    """Return the text with # for numbers, and units without their prefix."""
    words = _NUMBER.sub("#", " ".join(text.split()))
    return _UNIT.sub(lambda unit: unit[1] or unit[2], words)
