"""Decide which alerts are sent: level, quiet hours, duplicates and rate. Pure, except the file.

What was sent is kept in a file of the job's history, so that a requeued job does not repeat it.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import HoldfastError, InvalidValue

SCHEMA = "holdfast/alerts/1"
SAME_S = 600.0
MAX_ALERTS = 12
WINDOW_S = 3600.0
_MAX_BYTES = 1 << 20
_DAY_MINUTES = 24 * 60


class AlertLevel(StrEnum):
    """The lowest level that is sent; each includes those after it."""

    WARNING = "warning"  #: problems that do not stop the job, too
    FAILURE = "failure"  #: each failure, and the success after failures
    STOP = "stop"  #: only a job that stops because of a failure


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A notification. Alerts with equal ``same`` are duplicates; a ``last`` one ends the job.

    ``kind`` is apprise's notification type: receivers show it as a colour, symbol or priority.
    ``page`` is the path of the incident's page in the run folder.
    """

    title: str
    text: str
    kind: Literal["failure", "warning", "success", "info"] = "info"
    same: tuple[object, ...] = ()
    last: bool = False
    page: str = ""

    @property
    def level(self) -> AlertLevel:
        """Return the level."""
        if self.kind == "failure":
            return AlertLevel.STOP if self.last else AlertLevel.FAILURE
        return AlertLevel.FAILURE if self.kind == "success" else AlertLevel.WARNING

    @property
    def key(self) -> str:
        """Return ``same`` as text; an alert that ends the job repeats only such alerts."""
        return " ".join(map(str, (*self.same, *(("last",) if self.last else ()))))


class QuietHours(msgspec.Struct, frozen=True):
    """A time of day from ``begin`` to ``end``, in minutes after midnight; it may span midnight."""

    begin: int
    end: int

    def contains(self, minute: int) -> bool:
        """Return whether a minute of the day is quiet."""
        return (minute - self.begin) % _DAY_MINUTES < (self.end - self.begin) % _DAY_MINUTES


def parse_quiet_hours(text: str) -> QuietHours:
    """Parse ``22:00-07:00``. Raises InvalidValue."""
    match = re.fullmatch(r"\s*([01]?\d|2[0-3]):([0-5]\d)\s*-\s*([01]?\d|2[0-3]):([0-5]\d)\s*", text)
    if match is None:
        raise InvalidValue(
            "HOLDFAST_ALERT_QUIET",
            why=f"{text!r} is not a time of day",
            next_step="use e.g. 22:00-07:00, in local time",
        )
    begin_h, begin_m, end_h, end_m = map(int, match.groups())
    return QuietHours(60 * begin_h + begin_m, 60 * end_h + end_m)


class AlertFilter:
    """Decides which alerts are sent; the caller passes the time.

    ``sent`` maps the keys of alerts that earlier runs of the job sent to their Unix times.
    """

    def __init__(
        self,
        level: AlertLevel = AlertLevel.WARNING,
        quiet: QuietHours | None = None,
        sent: Mapping[str, float] | None = None,
    ) -> None:
        self._level, self._quiet = level, quiet
        self._sent = dict(sent or {})
        self._times: deque[float] = deque()
        self._held_back: Counter[str] = Counter()

    @property
    def sent(self) -> dict[str, float]:
        """Return the key and the time of alerts that are still compared with new ones."""
        return dict(self._sent)

    def admit(self, alert: Alert, now: float, minute: int = 0) -> Alert | None:
        """Return the alert with the count of held-back ones, or None to hold it back.

        ``now`` is in Unix seconds, ``minute`` the local minute of the day.
        """
        levels = list(AlertLevel)
        if levels.index(alert.level) < levels.index(self._level):
            return None
        while self._times and now - self._times[0] > WINDOW_S:
            self._times.popleft()
        self._sent = {key: at for key, at in self._sent.items() if 0 <= now - at < SAME_S}
        quiet = self._quiet is not None and self._quiet.contains(minute)
        repeated = alert.key in self._sent and bool(alert.same)
        limited = len(self._times) >= MAX_ALERTS and not alert.last
        if repeated or limited or (quiet and alert.level is not AlertLevel.STOP):
            self._held_back[alert.key] += 1
            return None
        held_back = self._held_back.total() if alert.last else self._held_back.pop(alert.key, 0)
        self._sent[alert.key] = now
        self._times.append(now)
        if not held_back:
            return alert
        what = "of the alerts before it were" if alert.last else "like it were"
        return msgspec.structs.replace(alert, text=f"{alert.text} ({held_back} {what} held back.)")


class _SentAlerts(msgspec.Struct, frozen=True):
    sent: dict[str, float]
    schema: str = SCHEMA


def read_sent_alerts(file: Path) -> dict[str, float]:
    """Return what earlier runs of the job sent; nothing if the file cannot be read."""
    with suppress(OSError, ValueError):
        document = decode_document(
            read_bounded(file, _MAX_BYTES),
            _SentAlerts,
            schema=SCHEMA,
            max_bytes=_MAX_BYTES,
            error=ValueError,
        )
        return document.sent
    return {}


def write_sent_alerts(file: Path, sent: Mapping[str, float]) -> None:
    """Write the file; an error means that a requeued job may repeat an alert."""
    with suppress(HoldfastError, OSError):
        write_atomic(file, msgspec.json.encode(_SentAlerts(dict(sent))))
