"""Waiting without deafness: signals are heard, people are told what is waited for, and every wait has an end."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import utils

from holdfast.errors import BadValue, RendezvousUnreachable, UsageError

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
#: Slurm's ``--signal`` and the like: a warning, which would end us; the workers get it, and the job goes on until then.
WARNING = signal.SIGUSR1
#: One line says what is waited for after so many seconds, and again from time to time.
SAY_AFTER_S = 5.0
SAY_EVERY_S = 60.0
_TRY_EVERY_S = 0.5
_TRUE = ("1", "true", "t", "yes", "y")  # as torch reads --rdzv-conf


class Signals:
    """The first signal ends the job in order (it raises torch's SignalException), the second one at once.

    A warning (SIGUSR1, unless it is among the names) is passed on to the workers.
    """

    def __init__(self, names: str, abandon: Callable[[], None]) -> None:
        known = (getattr(signal, name.strip(), None) for name in names.split(","))
        self._signals = [each for each in known if isinstance(each, signal.Signals)]
        self._abandon = abandon
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        #: Kills the workers, once there are any.
        self.kill: Callable[[], None] = lambda: None
        #: Tells the workers of a warning.
        self.pass_on: Callable[[signal.Signals], None] = lambda _: None
        #: With what all workers left, where they saved before: the job's status.
        self.status: int | None = None

    def __enter__(self) -> Self:
        """Listen, until the with-block is left."""
        self._before = {each: signal.getsignal(each) for each in {*self._signals, WARNING}}
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was there before."""
        for each, handler in self._before.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)

    def listen(self) -> None:
        """Put our handler in the place of whatever is there."""
        signal.signal(WARNING, lambda *_: self.pass_on(WARNING))
        for each in self._signals:
            signal.signal(each, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            self.kill()
            self._abandon()
            sys.stdout.flush()
            os._exit(128 + number)
        self.received = signal.Signals(number)
        message = f"process {os.getpid()} got {self.received.name}"
        raise SignalException(message, sigval=self.received)


class Waiting:
    """Says what is being waited for, once it takes long."""

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        self._say, self._what = say, what
        self._begun = time.monotonic()
        self._due_s = SAY_AFTER_S

    def tick(self) -> float:
        """Say it if it is time to; the seconds waited so far."""
        waited_s = time.monotonic() - self._begun
        if waited_s > self._due_s:
            self._say(f"waiting for {self._what}, since {waited_s:.0f} s")
            self._due_s += SAY_EVERY_S
        return waited_s


def in_thread(work: Callable[[], None], tick: Callable[[], object]) -> None:
    """Do ``work`` in a thread and wait for it in Python, where signals are heard; its exception becomes ours."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
            raised.append(error)

    thread = threading.Thread(target=run, name="holdfast rendezvous", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        tick()
    if raised:
        raise raised[0]


def await_rendezvous(given: argparse.Namespace, say: Callable[[str], None]) -> None:
    """Wait until somebody answers at the rendezvous, unless that is this node's own task.

    As long as torch would wait: ``timeout`` (static, 900 s) or ``read_timeout`` (c10d, 60 s) of ``--rdzv-conf``. We
    wait in its stead because it does so in C++, deaf to signals, and prints a stack for every attempt.

    Raises:
        RendezvousUnreachable: nobody answered in time.
        BadValue: the endpoint or the configuration makes no sense.
    """
    try:
        where = _elsewhere(given)
    except (ValueError, TypeError) as error:
        raise BadValue("the rendezvous", why=str(error), next_step="write --rdzv-endpoint HOST:PORT") from error
    if where is None:
        return
    host, port, limit_s = where
    waiting = Waiting(say, f"the rendezvous at {host}:{port}, {limit_s:g} s at most")
    while (why := _refusal(host, port)) is not None:
        if waiting.tick() > limit_s:
            raise unreachable(f"{host}:{port}", f"nothing answered there for {limit_s:g} s ({why})")
        time.sleep(_TRY_EVERY_S)


def unreachable(where: str, why: str, next_step: str | None = None) -> RendezvousUnreachable:
    """The error for a rendezvous that did not come about. The job never began, which counts as wrong usage."""
    error = RendezvousUnreachable(where, why=" ".join(why.split()), next_step=next_step)
    error.exit_status = UsageError.exit_status
    return error


def endpoint(given: argparse.Namespace) -> tuple[str, int]:
    """Host and port of the rendezvous, with torchrun's defaults. Raises ValueError where they cannot be read."""
    if given.rdzv_backend == "static":
        text = given.rdzv_endpoint or f"{given.master_addr}:{given.master_port or 29500}"
        host, port = utils.parse_rendezvous_endpoint(text, 29500)
    else:
        host, port = utils.parse_rendezvous_endpoint(given.rdzv_endpoint, 29400)
    return str(host), int(port)


def _elsewhere(given: argparse.Namespace) -> tuple[str, int, float] | None:
    """Host, port and patience for the rendezvous, where another node holds it; else None."""
    pairs = (part.partition("=") for part in given.rdzv_conf.split(",") if part)
    conf = {key.strip(): value.strip() for key, _, value in pairs}
    if given.standalone or torchrun.parse_min_max_nnodes(given.nnodes)[1] == 1:
        return None
    if given.rdzv_backend == "static" and int(given.node_rank) != 0:
        return *endpoint(given), float(conf.get("timeout", 900))
    if given.rdzv_backend == "c10d" and conf.get("store_type", "tcp") == "tcp":
        is_mine = getattr(utils, "_matches_machine_hostname", lambda _: True)
        hosts = conf["is_host"].lower() in _TRUE if "is_host" in conf else is_mine(endpoint(given)[0])
        if not hosts:
            return *endpoint(given), float(conf.get("read_timeout", 60))
    return None


def _refusal(host: str, port: int) -> str | None:
    """Why no connection comes about, in the system's words; None where one does."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None
