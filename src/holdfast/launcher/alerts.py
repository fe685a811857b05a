"""Send failure notifications through apprise: Slack, e-mail, webhooks and others.

An alert never blocks the job: a thread sends it. ``alert_filter`` decides which are sent. Addresses
contain passwords and tokens: no part of one is printed or logged.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core import settings
from holdfast.core.errors import InvalidValue, MissingExtra
from holdfast.core.findings import Verdict
from holdfast.launcher.alert_filter import (
    Alert,
    AlertFilter,
    AlertLevel,
    QuietHours,
    parse_quiet_hours,
    read_sent_alerts,
    write_sent_alerts,
)

#: File in the history of a job.
SENT_FILE = "alerts.json"
#: Seconds before the second and third attempt to reach a receiver.
RETRY_PAUSES_S = (1.0, 5.0)
#: Maximum wait for the last alert when the job ends.
CLOSE_TIMEOUT_S = 8.0
_MAX_QUEUED = 64
_OPTION = "--alert"


class AlertRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Where and what to send.

    ``urls`` are apprise URLs, or ``@file`` with one URL per line. ``page_url`` is the address of
    ``holdfast serve``. ``sent_file`` keeps what was sent for the next run of the job.
    """

    urls: tuple[str, ...] = ()
    run: str = ""
    level: AlertLevel = AlertLevel.WARNING
    quiet: QuietHours | None = None
    page_url: str = ""
    sent_file: Path | None = None


def read_alert_request(urls: Sequence[str], run: str, history: Path | None) -> AlertRequest:
    """Combine the URLs of the command line with the variables. Raises InvalidValue."""
    quiet = settings.read_text("HOLDFAST_ALERT_QUIET")
    return AlertRequest(
        urls=tuple(urls or (settings.read_text("HOLDFAST_ALERTS") or "").split()),
        run=run,
        level=AlertLevel(str(settings.read_text("HOLDFAST_ALERT_LEVEL"))),
        quiet=parse_quiet_hours(quiet) if quiet else None,
        page_url=(settings.read_text("HOLDFAST_PAGE_URL") or "").rstrip("/"),
        sent_file=history and history / SENT_FILE,
    )


class Alerts:
    """Sends alerts to receivers; ``notify`` prints a line.

    Raises:
        InvalidValue: an invalid URL, or a file that cannot be read.
        MissingExtra: apprise is not installed.
    """

    def __init__(self, request: AlertRequest, notify: Callable[[str], None]) -> None:
        self._receivers = [
            _create_receiver(url, number)
            for number, url in enumerate(_expand(request.urls), start=1)
        ]
        self._request, self._notify = request, notify
        sent = read_sent_alerts(request.sent_file) if request.sent_file else {}
        self._filter = AlertFilter(request.level, request.quiet, sent)
        self._queue: queue.Queue[Alert | None] = queue.Queue(_MAX_QUEUED)
        self._unreachable: set[int] = set()
        self._thread = threading.Thread(
            target=self._send_queued, name="holdfast-alerts", daemon=True
        )
        if self._receivers:
            self._thread.start()

    def send(self, alert: Alert) -> None:
        """Queue one alert; returns immediately."""
        if not self._receivers:
            return
        clock = time.localtime()
        admitted = self._filter.admit(alert, time.time(), 60 * clock.tm_hour + clock.tm_min)
        if admitted is None:
            return
        try:
            self._queue.put_nowait(self._with_link(admitted))
        except queue.Full:
            self._notify(f"alert dropped: {_MAX_QUEUED} alerts are already queued")

    def _with_link(self, alert: Alert) -> Alert:
        if not self._request.page_url:
            return alert
        link = "/".join(
            filter(None, (self._request.page_url, "run", self._request.run, alert.page))
        )
        return msgspec.structs.replace(alert, text=f"{alert.text} Page: {link}")

    def test(self) -> Iterator[tuple[str, bool]]:
        """Send a test alert to each receiver; yield its name and whether it was delivered."""
        alert = self._with_link(
            Alert(title="test", text="This is a test of `holdfast run --alert`.")
        )
        for number, receiver in enumerate(self._receivers, start=1):
            yield _name(receiver, number), _send(receiver, f"holdfast: {alert.title}", alert)

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
            delivered = [
                self._deliver(number, receiver, alert)
                for number, receiver in enumerate(self._receivers, start=1)
            ]
            if any(delivered) and self._request.sent_file is not None:
                write_sent_alerts(self._request.sent_file, self._filter.sent)

    def _deliver(self, number: int, receiver: Any, alert: Alert) -> bool:
        title = f"holdfast: {self._request.run}: {alert.title}"
        for pause_s in (0.0, *RETRY_PAUSES_S):
            if pause_s and number in self._unreachable:
                break  # it failed last time too: one attempt
            time.sleep(pause_s)
            if _send(receiver, title, alert):
                self._unreachable.discard(number)
                return True
        if number not in self._unreachable:
            self._unreachable.add(number)
            self._notify(
                f"the alert could not be delivered to {_name(receiver, number)}; the job continues"
            )
        return False


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
    return Alert(
        title=what,
        text=text,
        kind="failure",
        same=("failure", *same),
        last=stops,
        page="/".join(Path(page).parts[-3:]) if page else "",
    )


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
NO_ALERTS = Alerts(AlertRequest(), lambda _: None)
