"""Records of collectors of logs: JSON objects with a message, and what else they state of it.

Docker, journald, CloudWatch, Loki, Datadog, Logstash, Fluentd, Google Cloud and the JSON formatters
of Python's loggers use different keys for the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from holdfast.diagnose.transports import RecordOrigin

_Value = TypeVar("_Value")
#: The first key with a text is the message.
MESSAGE_KEYS = (
    "message", "msg", "log", "MESSAGE", "textPayload", "line", "event", "@message", "text",
    "content", "body", "short_message", "_raw", "raw", "logs", "output", "stdout", "stderr",
)  # fmt: skip
#: Objects within a record that have its message.
_ENVELOPES = (
    "message", "jsonPayload", "attributes", "content", "_source", "fields", "body", "record", "log",
    "extraInfo",
)  # fmt: skip
_EXCEPTION_KEYS = (
    "exc_info", "exception", "exc_text", "stack_trace", "stacktrace", "traceback", "error.stack",
    "error.stack_trace", "stack", "py_callstack",
)  # fmt: skip
_TRACEBACK = "Traceback (most recent call last)"
#: Objects within a record that state whose message it is.
_LABELS = (
    "labels", "kubernetes", "resource", "pod", "extra", "context", "host", "node", "error",
    "attributes", "record",
)  # fmt: skip
_HOST_KEYS = (
    "host", "hostname", "node_name", "node", "_HOSTNAME", "pod_name", "pod", "instance",
    "logStream", "logStreamName", "name",
)  # fmt: skip
_RANK_KEYS = ("rank", "global_rank", "RANK", "world_rank", "process_rank")
_TIME_KEYS = (
    "time", "timestamp", "@timestamp", "ts", "asctime", "__REALTIME_TIMESTAMP", "date", "datetime",
)  # fmt: skip
_MAX_RANK = 999_999
_MAX_DEPTH = 3
#: Larger numbers are milliseconds, microseconds or nanoseconds.
_MAX_SECONDS = 1e11


def message_of(record: Mapping[str, Any], depth: int = 0) -> str | None:
    """Return the text of a record, its exception included; None without one."""
    text = next(
        (text for key in MESSAGE_KEYS if (text := _text(record.get(key))) is not None), None
    )
    trace = _exception(record)
    if text is None and depth < _MAX_DEPTH:
        inner = (record.get(key) for key in _ENVELOPES)
        found = (message_of(one, depth + 1) for one in inner if isinstance(one, dict))
        text = next((one for one in found if one is not None), None)
    if not trace or (text is not None and trace in text):
        return text
    return trace if text is None or text in trace else f"{text}\n{trace}"


def origin_of(record: Mapping[str, Any]) -> RecordOrigin:
    """Return rank, host and time as the record states them, at its outermost level."""
    levels = list(_levels(record))
    return RecordOrigin(
        _first(levels, _RANK_KEYS, _rank),
        _first(levels, _HOST_KEYS, _name) or "",
        _first(levels, _TIME_KEYS, parse_time),
    )


def _first(
    levels: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    convert: Callable[[object], _Value | None],
) -> _Value | None:
    """Return the first value of one of the keys, at the outermost level that has one."""
    values = (convert(level.get(key)) for level in levels for key in keys)
    return next((value for value in values if value is not None), None)


def _levels(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the record, then the objects in it that describe or envelop the message."""
    # The name of a record is no host, but that of its pod is.
    yield {key: value for key, value in record.items() if key != "name"}
    for key in dict.fromkeys((*_ENVELOPES, *_LABELS)):
        inner = record.get(key)
        if isinstance(inner, dict):
            yield inner
            yield from (one for label in _LABELS if isinstance(one := inner.get(label), dict))


def parse_time(value: object) -> float | None:
    """Return Unix seconds of an ISO time or a number of any common unit; None if it is neither."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _parse_iso_time(str(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return None
    while value > _MAX_SECONDS:
        value /= 1000
    return float(value)


def _parse_iso_time(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _rank(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 7:
        value = int(value)
    is_rank = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_RANK
    return value if is_rank and isinstance(value, int) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text(value.get("stringValue"))  # OpenTelemetry
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, int) and 0 <= one < 256 for one in value)
    ):
        return bytes(value).decode(
            errors="replace"
        )  # journald, of a message with control characters
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return None


def _exception(record: Mapping[str, Any]) -> str:
    """Return the traceback that a logger put into a field of its own; empty if there is none."""
    for key in _EXCEPTION_KEYS:
        value = record.get(key)
        text = _text(value)
        if text is None and isinstance(value, list):
            text = "\n".join(_structured(one) for one in value if isinstance(one, dict))
        if text and "\n" in text:
            return text
    texts = (one for one in record.values() if isinstance(one, str) and _TRACEBACK in one)
    if (found := next(texts, None)) is not None and "\n" in found:
        return found
    inner = (record.get(key) for key in ("error", "extraInfo"))
    return next((text for one in inner if isinstance(one, dict) and (text := _exception(one))), "")


def _structured(trace: Mapping[str, Any]) -> str:
    """Return the traceback that structlog renders as objects."""
    frames = (frame for frame in trace.get("frames") or () if isinstance(frame, dict))
    lines = [
        f'  File "{frame.get("filename")}", line {frame.get("lineno")}, in {frame.get("name")}'
        for frame in frames
    ]
    last = f"{trace.get('exc_type')}: {trace.get('exc_value')}"
    return "\n".join(("Traceback (most recent call last):", *lines, last))
