"""The beginning and the end of each log as they are: for lines that no pattern matches.

What is new near the end is compared with what was printed before. Only bounded samples are kept:
parsing every line would take a hundred times as long as the scan.
"""

from __future__ import annotations

from holdfast.diagnose.evidence.streams import ReadableStream
from holdfast.diagnose.logs import LogSample

#: Bytes kept of each log, and logs of which samples are kept.
HEAD_BYTES, TAIL_BYTES, MAX_LOGS = 1 << 13, 1 << 14, 512


class LogSampler:
    """Keeps samples of the streams that are read."""

    def __init__(self) -> None:
        self._samples: dict[str, _GrowingSample] = {}

    def watch(
        self, name: str, rank: int | None, stream: ReadableStream, *, continues: bool
    ) -> ReadableStream:
        """Return ``stream``; samples of what is read from it are kept."""
        if not continues:
            self._samples.pop(name, None)
            if len(self._samples) >= MAX_LOGS:
                return stream
            self._samples[name] = _GrowingSample(rank)
        sample = self._samples.get(name)
        return stream if sample is None else _SampledStream(stream, sample)

    def add_whole(self, name: str, rank: int | None, data: bytes) -> None:
        """Keep samples of a log of which ``data`` is all."""
        self._samples.pop(name, None)
        if len(self._samples) < MAX_LOGS:
            self._samples[name] = sample = _GrowingSample(rank)
            sample.add(data)
            sample.line_feeds = data.count(b"\n")

    def count(self, name: str, line_feeds: int) -> None:
        """Add the number of line feeds in what was read of the stream."""
        if name in self._samples:
            self._samples[name].line_feeds += line_feeds

    def all(self) -> tuple[LogSample, ...]:
        """Return the samples so far."""
        return tuple(each.copy(name) for name, each in self._samples.items())


class _GrowingSample:
    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self._head = self._tail = b""
        self._size = self.line_feeds = 0

    def add(self, data: bytes) -> None:
        self._head += data[: HEAD_BYTES - len(self._head)]
        self._tail = data[-TAIL_BYTES:] if len(data) >= TAIL_BYTES else self._tail + data
        self._tail = self._tail[-TAIL_BYTES:]
        self._size += len(data)

    def copy(self, name: str) -> LogSample:
        head = self._head[: max(self._size - TAIL_BYTES, 0)]
        before = max(self.line_feeds - self._tail.count(b"\n"), 0)  # less after a failed read
        return LogSample(name, self._rank, head, self._tail, before, self._size > TAIL_BYTES)


class _SampledStream:
    """Passes everything on to a sample."""

    def __init__(self, stream: ReadableStream, sample: _GrowingSample) -> None:
        self._stream, self._sample = stream, sample

    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes."""
        data = self._stream.read(size)
        if data:
            self._sample.add(data)
        return data

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
