"""Is a checkpoint of one save? Where nothing in it is damaged, times and steps are all that tells.

A save over an older one that was cut short leaves new shards among old ones. DCP writes its index last, so that an
index from before the pause shows that the save after it was never finished. Other formats have no such file; the pause
alone is a warning. A copy of a folder has pauses as well, as long as the copying of a file takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.examining.survey import Examined
from holdfast.facts.checkpoints.examining.torn import Times
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.report.text import duration
from holdfast.rules.causes import by_name
from holdfast.rules.checkpoints.whole import listed

#: Formats whose files are written by all ranks at once; those of others may come one by one, hours apart.
_AT_ONCE = frozenset({
    Format.DCP, Format.MEGATRON, Format.FSDP1_LOCAL, Format.FSDP1_SHARDED, Format.ZERO1, Format.ZERO2, Format.ZERO3,
    Format.ACCELERATE, Format.FSDP2_SHARDED,
})  # fmt: skip
#: A pause counts where it is longer than this, than so many times the rest, and than a slow disk needs for the file.
_PAUSE_S, _PAUSE_WITH_INDEX_S, _TIMES, _SLOW_BYTES_PER_S = 5.0, 0.5, 5.0, 20e6


def judge(seen: Examined) -> Iterator[Finding]:
    """Findings that the checkpoint is of more than one save."""
    if isinstance(seen.times, Unknown) or seen.contents.format not in _AT_ONCE:
        return
    pause = seen.times.pause_s
    least = _PAUSE_WITH_INDEX_S if seen.times.old_index else _PAUSE_S
    counts = pause > max(least, _TIMES * seen.times.lasted_s, seen.times.next_size / _SLOW_BYTES_PER_S)
    several = len(seen.steps) > 1
    if counts:
        sure = 0.95 if several else 0.85 if seen.times.old_index else 0.6
        yield _torn(seen, seen.times, sure, Level.ERROR if several or seen.times.old_index else Level.WARNING)
    elif several and isinstance(seen.contents.step, int) and max(seen.steps) != seen.contents.step:
        steps = ", ".join(f"{step:,} ({listed(names)})" for step, names in sorted(seen.steps.items()))
        message = f"the optimizer's state of {seen.contents.root} is of several steps: {steps}"
        yield _claim(seen, message, (_fact(seen, message),), 0.5, Level.WARNING)


def _torn(seen: Examined, times: Times, sure: float, level: Level) -> Finding:
    was = "was" if len(times.after) == 1 else "were"
    message = f"{listed(times.after)} of {seen.contents.root} {was} written {duration(times.pause_s)} after "
    message += f"{listed(times.before)}: two saves, of which the later was not finished"
    facts = [
        _fact(seen, f"written at {times.began:.1f} (Unix time) and before", times.before[-1]),
        _fact(seen, f"written at {times.resumed:.1f} and later", times.after[0]),
    ]
    if times.old_index:
        facts.append(_fact(seen, "is written last in this format, and is older than those", times.index))
    if len(seen.steps) > 1:
        facts.append(_fact(seen, f"optimizer states of steps {', '.join(map(str, sorted(seen.steps)))}"))
    return _claim(seen, message, tuple(facts), sure, level)


def _fact(seen: Examined, text: str, file: str = "") -> Fact:
    return Fact(text=text, origin=f"{seen.contents.root}/{file}" if file else seen.contents.root)


def _claim(seen: Examined, message: str, facts: tuple[Fact, ...], sure: float, level: Level) -> Finding:
    return finding(
        by_name("checkpoint-half-written"), message, level=level, subject=Subject(file=seen.contents.root),
        evidence=facts, confidence=sure,
    )  # fmt: skip
