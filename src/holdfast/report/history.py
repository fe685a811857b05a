"""The story of a run for people: one paragraph an event, the oldest first."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from holdfast.report.text import duration, encodable, one_line


def draw(story: Iterable[Mapping[str, Any]], out: TextIO) -> None:
    """Write the story, whose events have ``at`` (Unix seconds), ``title`` and ``lines`` of (word, text)."""
    begun: float | None = None
    for event in story:
        begun = event["at"] if begun is None else begun
        out.writelines(encodable(line, out.encoding or "utf-8") + "\n" for line in _paragraph(event, begun))


def _paragraph(event: Mapping[str, Any], begun: float) -> Iterator[str]:
    clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
    passed = event["at"] - begun
    yield f"{clock}  {'' if passed < 0.5 else '+' + duration(passed):<12} {one_line(event['title'])}"
    lines: Sequence[tuple[str, str]] = event["lines"]
    for word, text in lines:
        yield f"{'':23}{word:>12}  {one_line(text)}"
