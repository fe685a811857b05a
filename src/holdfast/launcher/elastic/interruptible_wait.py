"""Waits that signals can interrupt, that report their purpose, and that time out."""

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

from holdfast.core.errors import InvalidValue, RendezvousUnreachable, UsageError
from holdfast.core.text import os_error_reason

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
#: A scheduler's warning before preemption (Slurm's ``--signal``); it is forwarded to the workers.
WARNING = signal.SIGUSR1
#: Seconds until the first message about a wait, and between later ones.
FIRST_MESSAGE_S = 5.0
MESSAGE_EVERY_S = 60.0
_CONNECT_EVERY_S = 0.5
#: Slurm sends SIGTERM twice at a requeue, to the step and through srun: within this time it is one.
_REPEATED_S = 5.0
_TRUE = ("1", "true", "t", "yes", "y")  # as torch parses --rdzv-conf


class AgentSignals:
    """Signal handlers of the agent, installed inside the with-block.

    The first of the signals ``names`` ends the job in order (raises torch's SignalException), the
    second one immediately, unless a scheduler repeats SIGTERM. A warning (SIGUSR1, unless named) is
    forwarded to the workers.
    """

    def __init__(self, names: str, abort: Callable[[], None]) -> None:
        known = (getattr(signal, name.strip(), None) for name in names.split(","))
        self._signals = [each for each in known if isinstance(each, signal.Signals)]
        self._abort = abort
        self._previous: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        self._received_at = 0.0
        #: Kills the workers, once there are any.
        self.kill: Callable[[], None] = lambda: None
        #: Forwards a warning to the workers.
        self.forward: Callable[[signal.Signals], None] = lambda _: None
        #: Called before the second signal ends this process.
        self.before_exit: Callable[[], None] = lambda: None
        #: Exit status of the job if all workers saved and exited with this status.
        self.status: int | None = None

    def __enter__(self) -> Self:
        """Install the handlers."""
        self._previous = {each: signal.getsignal(each) for each in {*self._signals, WARNING}}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous handlers."""
        for each, handler in self._previous.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)

    def install(self) -> None:
        """Install the handlers, in place of torch's."""
        signal.signal(WARNING, lambda *_: self.forward(WARNING))
        for each in self._signals:
            signal.signal(each, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            repeated = number == self.received == signal.SIGTERM
            if repeated and time.monotonic() - self._received_at < _REPEATED_S:
                return
            self.kill()
            self._abort()
            sys.stdout.flush()
            self.before_exit()
            os._exit(128 + number)
        self.received, self._received_at = signal.Signals(number), time.monotonic()
        message = f"process {os.getpid()} received {self.received.name}"
        raise SignalException(message, sigval=self.received)


class WaitReporter:
    """Prints what is being waited for, after FIRST_MESSAGE_S seconds and every MESSAGE_EVERY_S."""

    def __init__(self, notify: Callable[[str], None], what: str) -> None:
        self._notify, self._what = notify, what
        self._began = time.monotonic()
        self._due_s = FIRST_MESSAGE_S

    def tick(self) -> float:
        """Print the message if it is due; return the seconds waited so far."""
        waited_s = time.monotonic() - self._began
        if waited_s > self._due_s:
            self._notify(f"waiting for {self._what} for {waited_s:.0f} s")
            self._due_s += MESSAGE_EVERY_S
        return waited_s


def run_in_thread(work: Callable[[], None], tick: Callable[[], object]) -> None:
    """Run ``work`` in a thread while this one handles signals; raise the exception of ``work``."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            raised.append(error)

    thread = threading.Thread(target=run, name="holdfast rendezvous", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        tick()
    if raised:
        raise raised[0]


def await_rendezvous(options: argparse.Namespace, notify: Callable[[str], None]) -> None:
    """Wait until the rendezvous accepts connections, unless this node hosts it.

    Waits as long as torch would: ``timeout`` (static, 900 s) or ``read_timeout`` (c10d, 60 s) of
    ``--rdzv-conf``. torch itself waits in C++, where signals are not handled, and prints a stack
    for every attempt.

    Raises:
        RendezvousUnreachable: no connection within the timeout.
        InvalidValue: the endpoint or the configuration is invalid.
    """
    try:
        remote = _remote_rendezvous(options)
    except (ValueError, TypeError) as error:
        raise InvalidValue(
            "the rendezvous", why=str(error), next_step="use --rdzv-endpoint HOST:PORT"
        ) from error
    if remote is None:
        return
    host, port, timeout_s = remote
    reporter = WaitReporter(notify, f"the rendezvous at {host}:{port} (timeout {timeout_s:g} s)")
    while (why := _connection_error(host, port)) is not None:
        if reporter.tick() > timeout_s:
            raise rendezvous_unreachable(
                f"{host}:{port}", f"no connection within {timeout_s:g} s ({why})"
            )
        time.sleep(_CONNECT_EVERY_S)


def rendezvous_unreachable(
    address: str, why: str, next_step: str | None = None
) -> RendezvousUnreachable:
    """Return the error of a failed rendezvous; the exit status is that of a usage error."""
    error = RendezvousUnreachable(address, why=" ".join(why.split()), next_step=next_step)
    error.exit_status = UsageError.exit_status
    return error


def rendezvous_endpoint(options: argparse.Namespace) -> tuple[str, int]:
    """Return host and port of the rendezvous, with torchrun's defaults.

    Raises:
        ValueError: they cannot be parsed.
    """
    if options.rdzv_backend == "static":
        text = options.rdzv_endpoint or f"{options.master_addr}:{options.master_port or 29500}"
        host, port = utils.parse_rendezvous_endpoint(text, 29500)
    else:
        host, port = utils.parse_rendezvous_endpoint(options.rdzv_endpoint, 29400)
    return str(host), int(port)


def _remote_rendezvous(options: argparse.Namespace) -> tuple[str, int, float] | None:
    """Return host, port and timeout of a rendezvous that another node hosts; else None."""
    pairs = (part.partition("=") for part in options.rdzv_conf.split(",") if part)
    conf = {key.strip(): value.strip() for key, _, value in pairs}
    if options.standalone or torchrun.parse_min_max_nnodes(options.nnodes)[1] == 1:
        return None
    if options.rdzv_backend == "static" and int(options.node_rank) != 0:
        return *rendezvous_endpoint(options), float(conf.get("timeout", 900))
    if options.rdzv_backend == "c10d" and conf.get("store_type", "tcp") == "tcp":
        is_this_host = getattr(utils, "_matches_machine_hostname", lambda _: True)
        hosted_here = (
            conf["is_host"].lower() in _TRUE
            if "is_host" in conf
            else is_this_host(rendezvous_endpoint(options)[0])
        )
        if not hosted_here:
            return *rendezvous_endpoint(options), float(conf.get("read_timeout", 60))
    return None


def _connection_error(host: str, port: int) -> str | None:
    """Return why a connection fails; None if it succeeds."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        return os_error_reason(error)
    return None
