"""Finds the decoders of a log by its first lines, the outermost first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.diagnose.transports import CarriedLine, FirstLines, Recognizer, TransportDecoder
from holdfast.diagnose.transports.container_runtime import recognize_container_lines
from holdfast.diagnose.transports.glued import recognize_glued_lines, recognize_literal_line_feeds
from holdfast.diagnose.transports.json_documents import recognize_json_document
from holdfast.diagnose.transports.json_lines import recognize_json_lines
from holdfast.diagnose.transports.newest_first import recognize_newest_first
from holdfast.diagnose.transports.quotes import recognize_html, recognize_quotes
from holdfast.diagnose.transports.tables import recognize_header, recognize_table
from holdfast.diagnose.transports.wrapping import recognize_wrapping

#: The first that claims a log wins; then the others are tried with the lines that it yields.
RECOGNIZERS: tuple[Recognizer, ...] = (
    recognize_quotes,
    recognize_html,
    recognize_table,
    recognize_json_document,
    recognize_json_lines,
    recognize_container_lines,
    recognize_newest_first,
    recognize_wrapping,
    recognize_literal_line_feeds,
    recognize_glued_lines,
)


#: Every line of most logs begins with a rank, a time or a level, and is not as long as a glued one.
_LINES_OF_A_LOGGER = re.compile(
    rb"(?:(?:\[(?:rank|default|Rank )\d|\[?\d{4}-\d\d-\d\d|\[?[WEIF]\d{3,4} \d\d:).{0,380}\n)+"
)


def recognize(data: bytes) -> list[TransportDecoder]:
    """Return new decoders for a log that begins so; none for a log as it was written."""
    if is_from_logger(data):
        return []
    makers: dict[Recognizer, Callable[[], TransportDecoder]] = {}
    first: FirstLines | None = FirstLines(data)
    while first is not None:
        first = _claim(first, makers)
    return [make() for make in makers.values()]


def is_from_logger(data: bytes) -> bool:
    """Return whether the form of all lines shows that no recognizer claims the log.

    They are no records, no HTML, have no literal line feeds, and none continues another.
    """
    return (
        _LINES_OF_A_LOGGER.fullmatch(data) is not None
        and not (b"{" in data or b"&" in data or b"\\" in data or b"\r" in data)
        and b" std" not in data[:256]
        and recognize_header(data[: data.find(b"\n")]) is None
    )


def _claim(
    first: FirstLines, makers: dict[Recognizer, Callable[[], TransportDecoder]]
) -> FirstLines | None:
    """Add the recognizer that claims these lines; return what is in them, None without one."""
    for recognizer in RECOGNIZERS:
        if recognizer not in makers and (make := recognizer(first)) is not None:
            makers[recognizer] = make
            lines = list(decode([make()], first.lines))
            return FirstLines(b"".join(line.text for line in lines), lines)
    return None


def decode(
    decoders: Sequence[TransportDecoder], lines: Iterable[CarriedLine], *, flush: bool = True
) -> Iterator[CarriedLine]:
    """Yield what all ``decoders``, one after the other, make of ``lines``."""
    if not decoders:
        yield from lines
        return
    yield from decode(decoders[1:], _decode_one(decoders[0], lines, flush=flush), flush=flush)


def _decode_one(
    decoder: TransportDecoder, lines: Iterable[CarriedLine], *, flush: bool
) -> Iterator[CarriedLine]:
    for line in lines:
        yield from decoder.feed(line)
    if flush:
        yield from decoder.flush()
