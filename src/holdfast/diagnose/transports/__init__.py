"""What carried a log here: containers, collectors of logs, exports, web pages, terminals, people.

Each module has one kind of transport: a recognizer that claims a log by its first lines, and a
decoder that yields the lines that a program wrote, with rank, host and time where the transport
has them. ``recognition.py`` finds the decoders of a log; several may be nested (CRI lines in
Docker's records). Prefixes of single lines are not decoded here: ``logs/lines.py`` strips them.

Decoders hold at most ``MAX_HELD_BYTES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

#: Incomplete records, and lines that may be continued, are held up to this size.
MAX_HELD_BYTES = 1 << 20


class CarriedLine(NamedTuple):
    """A line, or a piece of a very long one: ``text`` ends with a line feed unless it is cut.

    ``number`` counts from 1 in the file. Rank, host and time (Unix seconds) are those that the
    transport states.
    """

    number: int
    text: bytes
    rank: int | None = None
    host: str = ""
    time: float | None = None

    @property
    def content(self) -> bytes:
        """The text without its line end."""
        return self.text.rstrip(b"\r\n")

    def with_text(self, text: bytes) -> CarriedLine:
        """Return the line with another text, which gets a line end."""
        return CarriedLine(self.number, text + b"\n", self.rank, self.host, self.time)

    def from_record(self, text: bytes, origin: RecordOrigin) -> CarriedLine:
        """Return a line of a record that this line ends; what was known of the line remains."""
        rank = self.rank if origin.rank is None else origin.rank
        time = origin.time if self.time is None else self.time
        return CarriedLine(self.number, text + b"\n", rank, self.host or origin.host, time)


def numbered_lines(data: bytes, before: int = 0) -> list[CarriedLine]:
    """Return the lines of ``data``, which follow ``before`` lines of a file."""
    return [
        CarriedLine(at, text) for at, text in enumerate(data.splitlines(keepends=True), before + 1)
    ]


class RecordOrigin(NamedTuple):
    """What a record of a collector of logs states about its message."""

    rank: int | None = None
    host: str = ""
    time: float | None = None


class TransportDecoder(Protocol):
    """Turns lines as they are in the file into lines as a program wrote them."""

    def feed(self, line: CarriedLine) -> Iterable[CarriedLine]:
        """Return the lines that are complete with ``line``."""
        ...

    def flush(self) -> Iterable[CarriedLine]:
        """Return the lines that were held back; the log, or what there is of it, ends here."""
        ...


class FirstLines:
    """The first lines of a log, by which a recognizer claims it: ``data`` are all their bytes.

    Without ``lines`` they are those of a file. ``contents`` are the lines that are not blank,
    without line ends, ``lengths`` the numbers of bytes in them.
    """

    def __init__(self, data: bytes, lines: Sequence[CarriedLine] | None = None) -> None:
        self.data = data
        self._decoded = lines
        contents = data.splitlines() if lines is None else [line.content for line in lines]
        self.contents: list[bytes] = list(filter(bytes.strip, contents))
        self.lengths = list(map(len, self.contents))

    @cached_property
    def lines(self) -> Sequence[CarriedLine]:
        """The lines with their numbers."""
        return numbered_lines(self.data) if self._decoded is None else self._decoded

    @property
    def times(self) -> list[float]:
        """The times that transports state; a file states none."""
        return [line.time for line in self._decoded or () if line.time is not None]

    def share(self, matches: Callable[[bytes], object]) -> float:
        """Return the share of the lines that are not blank for which ``matches`` is true."""
        contents = self.contents
        return sum(map(bool, map(matches, contents))) / len(contents) if contents else 0.0


#: Returns what makes a decoder for a log with these first lines; None if it is not of this kind.
Recognizer = Callable[[FirstLines], Callable[[], TransportDecoder] | None]
