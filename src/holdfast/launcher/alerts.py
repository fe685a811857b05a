"""Send failure notifications through apprise: Slack, e-mail, webhooks and others.

An alert never blocks the job: a thread sends it. Equal alerts are sent once per :data:`SAME_S` and
counted meanwhile; beyond :data:`MAX_ALERTS` per :data:`WINDOW_S` they are held back until the job
ends, whose alert is always sent. Addresses contain passwords and tokens: no part of one is printed
or logged.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.errors import InvalidValue, MissingExtra
from holdfast.core.findings import Verdict

SAME_S = 600.0
MAX_ALERTS = 12
WINDOW_S = 3600.0
#: Seconds before the second and third attempt to reach a receiver.
RETRY_PAUSES_S = (1.0, 5.0)
#: Maximum wait for the last alert when the job ends.
CLOSE_TIMEOUT_S = 8.0
_MAX_QUEUED = 64
_OPTION = "--alert"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A notification. Alerts with equal ``same`` are duplicates; a ``last`` one is always sent.

    ``kind`` is apprise's notification type: receivers show it as a colour, symbol or priority.
    """

    title: str
    text: str
    kind: Literal["failure", "warning", "success", "info"] = "info"
    same: tuple[object, ...] = ()
    last: bool = False


class RateLimit:
    """Decide which alerts are sent. Pure: the caller passes the time."""

    def __init__(self) -> None:
        self._sent: dict[tuple[object, ...], float] = {}
        self._times: deque[float] = deque()
        self._held_back: Counter[tuple[object, ...]] = Counter()

    def admit(self, alert: Alert, now: float) -> Alert | None:
        """Return the alert with the count of held-back ones, or None to hold it back.

        ``now`` is in seconds.
        """
        while self._times and now - self._times[0] > WINDOW_S:
            self._times.popleft()
        repeated = alert.same in self._sent and now - self._sent[alert.same] < SAME_S
        if not alert.last and (repeated or len(self._times) >= MAX_ALERTS):
            self._held_back[alert.same] += 1
            return None
        held_back = self._held_back.total() if alert.last else self._held_back.pop(alert.same, 0)
        self._sent[alert.same] = now
        self._times.append(now)
        if not held_back:
            return alert
        what = "of the alerts before it were" if alert.last else "like it were"
        return msgspec.structs.replace(alert, text=f"{alert.text} ({held_back} {what} held back.)")


class Alerts:
    """Sends to ``urls``: apprise URLs, or ``@file`` with one URL per line.

    Raises:
        InvalidValue: an invalid URL, or a file that cannot be read.
        MissingExtra: apprise is not installed.
    """

    def __init__(self, urls: Sequence[str], run: str, notify: Callable[[str], None]) -> None:
        self._receivers = [
            _create_receiver(url, number) for number, url in enumerate(_expand(urls), start=1)
        ]
        self._run, self._notify = run, notify
        self._rate_limit = RateLimit()
        self._queue: queue.Queue[Alert | None] = queue.Queue(_MAX_QUEUED)
        self._unreachable: set[int] = set()
        self._thread = threading.Thread(
            target=self._send_queued, name="holdfast-alerts", daemon=True
        )
        if self._receivers:
            self._thread.start()

    def send(self, alert: Alert) -> None:
        """Queue one alert; returns immediately."""
        admitted = self._rate_limit.admit(alert, time.monotonic()) if self._receivers else None
        if admitted is None:
            return
        try:
            self._queue.put_nowait(admitted)
        except queue.Full:
            self._notify(f"alert dropped: {_MAX_QUEUED} alerts are already queued")

    def ended(self, status: int, failures: int) -> None:
        """Report the success of a job that had failures, and close."""
        if failures and not status:
            times = "one failure" if failures == 1 else f"{failures} failures"
            self.send(
                Alert(
                    title="the job succeeded",
                    text=f"The job succeeded after {times}.",
                    kind="success",
                    last=True,
                )
            )
        self.close()

    def close(self) -> None:
        """Wait for queued alerts, at most CLOSE_TIMEOUT_S."""
        if not self._thread.is_alive():
            return
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            self._notify("pending alerts dropped: a receiver does not respond")

    def _send_queued(self) -> None:
        while (alert := self._queue.get()) is not None:
            for number, receiver in enumerate(self._receivers, start=1):
                self._deliver(number, receiver, alert)

    def _deliver(self, number: int, receiver: Any, alert: Alert) -> None:
        title = f"holdfast: {self._run}: {alert.title}"
        for pause_s in (0.0, *RETRY_PAUSES_S):
            if pause_s and number in self._unreachable:
                break  # it failed last time too: one attempt
            time.sleep(pause_s)
            if _send(receiver, title, alert):
                self._unreachable.discard(number)
                return
        if number not in self._unreachable:
            self._unreachable.add(number)
            self._notify(
                f"the alert could not be delivered to {_name(receiver, number)}; the job continues"
            )


def failure_alert(
    verdict: Verdict | None, deaths: str, action: str, *, stops: bool, page: str | None
) -> Alert:
    """Build the alert of a failure: the verdict, the action, and the path of the report."""
    root = verdict.root if verdict is not None else None
    if root is None:
        what = deaths
        text = f"{what}; no cause was identified."
    else:
        where = "" if root.subject.host is None else f", on {root.subject.host}"
        what = root.message
        text = f"{what} ({root.code} {root.cause}, {root.confidence:.0%} confidence{where})."
    text += f" Action: {action}."
    if page:
        text += f" Report: {page}."
    if root is not None:
        text += f" Details: `holdfast explain {root.code}`."
    same = (root.code, root.subject.rank, root.subject.host) if root is not None else ()
    return Alert(title=what, text=text, kind="failure", same=("failure", *same), last=stops)


def warning_alert(rank: int, about: str, text: str) -> Alert:
    """Build the alert of a problem that does not stop the job, e.g. a failed copy."""
    return Alert(
        title=f"{about} failed, the job continues",
        text=f"rank {rank}: {text}.",
        kind="warning",
        same=("warning", about),
    )


def _expand(urls: Sequence[str]) -> list[str]:
    expanded: list[str] = []
    for url in urls:
        if not url.startswith("@"):
            expanded.append(url)
            continue
        try:
            with open(url[1:], encoding="utf-8") as file:  # noqa: PTH123 - as the shell would
                expanded += [
                    line.strip() for line in file.read(1 << 20).splitlines() if line.strip()
                ]
        except (OSError, UnicodeDecodeError) as error:
            why = (
                error.strerror
                if isinstance(error, OSError) and error.strerror
                else "not a text file"
            )
            raise InvalidValue(
                _OPTION, why=f"{url[1:]}: {why.lower()}", next_step="use a readable file"
            ) from error
    return expanded


def _create_receiver(url: str, number: int) -> Any:
    try:
        import apprise  # noqa: PLC0415 - an extra, and a third of a second
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "apprise", next_step="install it with: pip install 'holdfast[alerts]'"
        ) from error
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its lines may hold addresses
    receiver = apprise.Apprise.instantiate(url, suppress_exceptions=True)
    if receiver is None:
        step = "use a URL of https://appriseit.com/services: slack://…, mailto://…, json://…"
        raise InvalidValue(
            _OPTION, why=f"alert address {number} is not a valid Apprise URL", next_step=step
        )
    return receiver


def _send(receiver: Any, title: str, alert: Alert) -> bool:
    from apprise import NotifyType  # noqa: PLC0415 - an extra; imported already, for the receiver

    kind = getattr(NotifyType, alert.kind.upper())
    try:
        return bool(receiver.notify(body=alert.text, title=title, notify_type=kind))
    except Exception:  # noqa: BLE001 - any of dozens of services; must not end the job
        return False


def _name(receiver: Any, number: int) -> str:
    """Return the receiver's number and service; the address itself may contain secrets."""
    return f"receiver {number} ({getattr(receiver, 'service_name', None) or 'unknown service'})"


#: No receivers.
NO_ALERTS = Alerts((), "", lambda _: None)
