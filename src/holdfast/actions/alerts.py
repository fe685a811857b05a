"""Tells people elsewhere what happened to a job and what is done about it: Slack, e-mail, a webhook, … (apprise).

An alert never holds the job up: it is handed to a thread, which waits for receivers. What is the same is told once in
:data:`SAME_S` and counted meanwhile; more than :data:`MOST` in :data:`WITHIN_S` wait until the end, of which one is
always told. The addresses hold passwords and tokens: no part of one is ever printed or logged.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.errors import BadValue, MissingExtra
from holdfast.findings import Verdict

SAME_S = 600.0
MOST = 12
WITHIN_S = 3600.0
#: Seconds before the second and third try to reach a receiver.
TRY_AGAIN_S = (1.0, 5.0)
#: How long the end of a job waits for its last alert.
PATIENCE_S = 8.0
_MOST_WAITING = 64
_OPTION = "--alert"


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell. ``same`` is what makes it the same as another; a ``last`` one is always told."""

    title: str
    text: str
    same: tuple[object, ...] = ()
    last: bool = False


class Restraint:
    """Which alerts are told. Pure: the clock is given."""

    def __init__(self) -> None:
        self._told: dict[tuple[object, ...], float] = {}
        self._times: deque[float] = deque()
        self._kept: Counter[tuple[object, ...]] = Counter()

    def pass_on(self, alert: Alert, now: float) -> Alert | None:
        """The alert, with what was held back before it; None where it is held back itself. ``now`` in seconds."""
        while self._times and now - self._times[0] > WITHIN_S:
            self._times.popleft()
        repeated = alert.same in self._told and now - self._told[alert.same] < SAME_S
        if not alert.last and (repeated or len(self._times) >= MOST):
            self._kept[alert.same] += 1
            return None
        kept = self._kept.total() if alert.last else self._kept.pop(alert.same, 0)
        self._told[alert.same] = now
        self._times.append(now)
        if not kept:
            return alert
        what = "of the alerts before it were" if alert.last else "like it were"
        return msgspec.structs.replace(alert, text=f"{alert.text} ({kept} {what} held back.)")


class Alerts:
    """Sends to ``urls``, each an address of apprise, or ``@file`` with one a line.

    Raises:
        BadValue: an address that apprise does not know, or a file that cannot be read.
        MissingExtra: apprise is not installed.
    """

    def __init__(self, urls: Sequence[str], run: str, say: Callable[[str], None]) -> None:
        self._receivers = [_receiver(url, number) for number, url in enumerate(_listed(urls), start=1)]
        self._run, self._say = run, say
        self._restraint = Restraint()
        self._waiting: queue.Queue[Alert | None] = queue.Queue(_MOST_WAITING)
        self._deaf: set[int] = set()
        self._thread = threading.Thread(target=self._send_all, name="holdfast-alerts", daemon=True)
        if self._receivers:
            self._thread.start()

    def tell(self, alert: Alert) -> None:
        """Hand over one alert; returns at once, whatever the receivers do."""
        found = self._restraint.pass_on(alert, time.monotonic()) if self._receivers else None
        if found is None:
            return
        try:
            self._waiting.put_nowait(found)
        except queue.Full:
            self._say(f"no alert is sent: {_MOST_WAITING} are waiting already")

    def ended(self, status: int, failures: int) -> None:
        """The job is over: tell who was told of failures, and wait for what is under way, but not for long."""
        if failures and not status:
            times = "one failure" if failures == 1 else f"{failures} failures"
            self.tell(Alert(title="the job is done", text=f"The job ended well, after {times}.", last=True))
        self.close()

    def close(self) -> None:
        """Wait for what is under way, but not for long."""
        if not self._thread.is_alive():
            return
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self._say("alerts are given up: a receiver does not answer")

    def _send_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            for number, receiver in enumerate(self._receivers, start=1):
                self._send(number, receiver, alert)

    def _send(self, number: int, receiver: Any, alert: Alert) -> None:
        title = f"holdfast: {self._run}: {alert.title}"
        for pause_s in (0.0, *TRY_AGAIN_S):
            if pause_s and number in self._deaf:
                break  # it did not answer the last time either: one try is enough
            time.sleep(pause_s)
            if _notified(receiver, title, alert.text):
                self._deaf.discard(number)
                return
        if number not in self._deaf:
            self._deaf.add(number)
            self._say(f"the alert could not be delivered to {_name(receiver, number)}; the job goes on")


def of_failure(verdict: Verdict | None, deaths: str, done: str, *, stops: bool, page: str | None) -> Alert:
    """What is told of a failure: the verdict in one paragraph, what is ``done``, and where to read on."""
    root = verdict.root if verdict is not None else None
    if root is None:
        what = deaths
        text = f"{what}; no cause could be named."
    else:
        where = "" if root.subject.host is None else f", on {root.subject.host}"
        what = root.message
        text = f"{what} ({root.code} {root.cause}, {root.confidence:.0%} sure{where})."
    text += f" What is done: {done}."
    if page:
        text += f" Report: {page}."
    if root is not None:
        text += f" `holdfast explain {root.code}` tells more."
    same = (root.code, root.subject.rank, root.subject.host) if root is not None else ()
    return Alert(title=what, text=text, same=("failure", *same), last=stops)


def of_warning(rank: int, about: str, text: str) -> Alert:
    """What is told of something that went wrong in a rank while the job goes on, such as a copy to a bucket."""
    return Alert(title=f"{about} failed, the job goes on", text=f"rank {rank}: {text}.", same=("warning", about))


def _listed(urls: Sequence[str]) -> list[str]:
    found: list[str] = []
    for url in urls:
        if not url.startswith("@"):
            found.append(url)
            continue
        try:
            with open(url[1:], encoding="utf-8") as file:  # noqa: PTH123 - as the shell would
                found += [line.strip() for line in file.read(1 << 20).splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text"
            raise BadValue(_OPTION, why=f"{url[1:]}: {why.lower()}", next_step="name a readable file") from error
    return found


def _receiver(url: str, number: int) -> Any:
    try:
        import apprise  # noqa: PLC0415 - an extra, and a third of a second
    except ModuleNotFoundError as error:
        raise MissingExtra("apprise", next_step="install it with: pip install 'holdfast[alerts]'") from error
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its lines may hold addresses
    found = apprise.Apprise.instantiate(url, suppress_exceptions=True)
    if found is None:
        step = "write it as https://appriseit.com/services says: slack://…, mailto://…, json://…"
        raise BadValue(_OPTION, why=f"address {number} is none that apprise knows", next_step=step)
    return found


def _notified(receiver: Any, title: str, text: str) -> bool:
    try:
        return bool(receiver.notify(body=text, title=title))
    except Exception:  # noqa: BLE001 - dozens of services, and the job is worth more than any of them
        return False


def _name(receiver: Any, number: int) -> str:
    """The number of the receiver and what it is: an address may hold secrets in any of its parts."""
    return f"receiver {number} ({getattr(receiver, 'service_name', None) or 'of an unknown kind'})"


#: Where nobody is to be told.
SILENT = Alerts((), "", lambda _: None)
