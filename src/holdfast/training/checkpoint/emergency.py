"""Emergency checkpoints: on a scheduler's signal, all ranks save at one step and exit.

The signals are SIGTERM and SIGUSR1, and in ``holdfast.loop`` also SIGINT (Ctrl-C). A training loop
needs two calls::

    from holdfast.training.checkpoint import emergency
    ...
    if emergency.is_due(step):           # between two steps: nanoseconds, until a signal arrives
        checkpoint.save(step)            # on all ranks
        emergency.exit_rank()            # exits with 128 + the signal number

Agreement: a rank that stops alone would leave the others blocked in a collective. A thread in every
rank receives the signal (:mod:`signal_listener`) or reads from the job's store that another rank
did, and publishes the next step that its rank has not begun. All ranks stop at the highest of these
steps: no rank is past it, and every rank reaches it, because all ranks called the collectives
before it. In :func:`is_due` a rank waits only for the other ranks' threads, which never wait for
training.

A rank that publishes nothing for ``AGREE_LIMIT_S`` is dead or frozen. Then no joint checkpoint is
possible, and the signalled rank is terminated by the signal. The same happens if the agent
terminates the ranks because one failed, and if the kernel sent the signal because the agent is
gone.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import threading
import time
from typing import NoReturn

import msgspec
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast import recorder
from holdfast.core import settings, trace_file
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.text import format_duration
from holdfast.training.checkpoint.signal_listener import SIGNALS, SignalListener, terminate_by
from holdfast.training.collectives.groups.group_info import epoch, job_store

#: Seconds after which a rank whose thread published no step counts as dead or frozen.
AGREE_LIMIT_S = 5.0
#: Store polling interval in seconds; longer for jobs above _RANKS_PER_POLL ranks.
POLL_INTERVAL_S = 0.25
_RANKS_PER_POLL = 4096
_POLL_S = 0.01
_ORPHAN_S = 0.2
#: Seconds before the end of the grace period at which a rank gives up on the checkpoint.
_RESERVE_S = 1.0
_NEVER = 1 << 63
#: Base of the exit status after a signal, as in shells. Kubeflow restarts replicas from 128 on.
SIGNAL_EXIT_BASE = 128
_log = logging.getLogger("holdfast.checkpoint")


class PreemptionNotice(msgspec.Struct, frozen=True):
    """Which global rank received which signal number."""

    rank: int
    signal: int


class EmergencyCheckpoint:
    """Receives the scheduler's signal for this rank and agrees with the others on a step.

    ``grace_s`` is the time from the signal until the job is killed, in seconds.
    """

    def __init__(
        self,
        grace_s: float,
        signals: tuple[signal.Signals, ...] = SIGNALS,
        *,
        chain: bool = True,
    ) -> None:
        self.grace_s = grace_s
        self._listener = SignalListener(signals, chain=chain)
        self._step = -1
        self._posted = False
        self._save_step = _NEVER
        self._saving = False
        self._decided = threading.Event()
        self._closed = threading.Event()
        self._epoch = 0
        self._parent = os.getppid()
        #: The notice, and the monotonic time at which the grace period ends; None before a signal.
        self.notice: PreemptionNotice | None = None
        self._signalled: signal.Signals | None = None
        self.deadline: float | None = None
        trace = settings.read_path("HOLDFAST_TRACE")
        self._teardown = trace.with_name(trace_file.TEARDOWN) if trace is not None else None
        self._thread = threading.Thread(target=self._watch, name="holdfast emergency", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._close_in_child)
        atexit.register(self.close)

    def is_due(self, step: int) -> bool:
        """Return whether all ranks save now and exit; all call it between steps, in order.

        True on all ranks at the same step, and never before. Costs 0.1 us until a signal arrives;
        then once a fraction of a second, to wait for the other ranks' threads.
        """
        # Before reading the flag: the thread sets the flag before it reads the step.
        self._step = step
        if not self._posted:
            return False
        self._decided.wait(2 * AGREE_LIMIT_S)
        self._saving = step >= self._save_step
        return self._saving

    @property
    def closed(self) -> bool:
        """Return whether the listener is closed."""
        return self._closed.is_set()

    @property
    def remaining_s(self) -> float | None:
        """Return the seconds left of the grace period; None before a signal."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def status(self) -> int:
        """Return the exit status: 128 + signal number, such as 143 for SIGTERM."""
        return SIGNAL_EXIT_BASE + (
            self.notice.signal if self.notice is not None else int(signal.SIGTERM)
        )

    def exit_rank(self) -> NoReturn:
        """Exit after the checkpoint; called on all ranks. Raises SystemExit."""
        received = self.notice.signal if self.notice is not None else 0
        note = {"signal": received, "step": self._step, "status": self.status, "time": time.time()}
        recorder.record_note(trace_file.TraceNote.PREEMPTED, note)
        raise SystemExit(self.status)

    def close(self) -> None:
        """Stop listening and restore the previous signal handlers."""
        atexit.unregister(self.close)
        if not self._closed.is_set():
            self._closed.set()
            self._listener.wake()
            # A thread that returns from C++ during interpreter shutdown aborts the process.
            self._thread.join(10.0)
            self._listener.close()

    # ---- the thread

    def _close_in_child(self) -> None:
        self._closed.set()
        atexit.unregister(self.close)

    def _watch(self) -> None:
        while not self._closed.is_set():
            ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
            received = self._listener.wait(POLL_INTERVAL_S * max(1.0, ranks / _RANKS_PER_POLL))
            if self._closed.is_set():
                return
            if received is not None and self._is_shutting_down(received):
                terminate_by(received)
            self._enforce_deadline()
            try:
                self._poll_store(received)
            except (RuntimeError, ValueError, OSError):  # torch's network errors are RuntimeErrors
                self._decided.set()
                if received is not None:
                    _log.warning("no emergency checkpoint: the job's store does not respond")
                    terminate_by(received)

    def _is_shutting_down(self, received: signal.Signals) -> bool:
        """Return whether the agent is terminating the ranks or is gone: saving is pointless.

        A rank that is already saving may finish; the others may have exited before it.
        """
        if self._saving or received != signal.SIGTERM:
            return False
        return (self._teardown is not None and self._teardown.exists()) or self._is_orphan()

    def _is_orphan(self) -> bool:
        """Return whether the agent is gone; its PID can outlive its first thread briefly."""
        deadline = time.monotonic() + _ORPHAN_S
        while os.getppid() == self._parent:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
        return True

    def _enforce_deadline(self) -> None:
        """Terminate by the signal if the agreed step is not reached before SIGKILL is due."""
        if (
            self.notice is None
            or self._saving
            or (self.remaining_s or 0.0) > _RESERVE_S
            or self._signalled is None
        ):
            return
        _log.warning(
            "no emergency checkpoint: step %s was not reached within %.0f s",
            self._save_step,
            self.grace_s,
        )
        terminate_by(self._signalled)

    def _poll_store(self, received: signal.Signals | None) -> None:
        single_process = not (
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        )
        self._signalled = self._signalled or received
        own_notice = (
            None
            if received is None
            else PreemptionNotice(0 if single_process else dist.get_rank(), int(received))
        )
        if not single_process and epoch() != self._epoch:  # new generation, new store
            self._epoch, self._posted, self._save_step = epoch(), False, _NEVER
            self._decided.clear()
        if self._posted:
            return  # a second signal changes nothing
        if single_process:
            if own_notice is not None:
                self._begin(own_notice)
                self._decide(str(self._step + 1))
            return
        store = PrefixStore(f"holdfast/emergency/{self._epoch}", job_store())
        if own_notice is not None:
            self._begin(
                msgspec.json.decode(
                    store.compare_set("warned", "", msgspec.json.encode(own_notice).decode()),
                    type=PreemptionNotice,
                )
            )
        elif store.check(["warned"]):
            self._begin(msgspec.json.decode(store.get("warned"), type=PreemptionNotice))
        else:
            return
        self._decide(self._agree(store))
        if self._save_step == _NEVER and own_notice is not None:
            terminate_by(signal.Signals(own_notice.signal))

    def _begin(self, notice: PreemptionNotice) -> None:
        self.notice = notice
        self.deadline = time.monotonic() + self.grace_s
        self._posted = True

    def _agree(self, store: Store) -> str:
        """Publish this rank's step; return the common step, or why there is none."""
        ranks, rank = dist.get_world_size(), dist.get_rank()
        store.set(str(rank), str(self._step + 1))
        if store.add("reported", 1) == ranks:
            steps = [int(store.get(str(rank_number))) for rank_number in range(ranks)]
            return str(store.compare_set("decision", "", str(max(steps))).decode())
        # The signalled rank waits 1 s less than the others, which may read the notice later.
        is_signalled_rank = self.notice is not None and self.notice.rank == rank
        deadline = time.monotonic() + AGREE_LIMIT_S - (0.0 if not is_signalled_rank else 1.0)
        while not store.check(["decision"]):
            if time.monotonic() > deadline:
                silent = [
                    rank_number
                    for rank_number in range(ranks)
                    if not store.check([str(rank_number)])
                ]
                return str(
                    store.compare_set(
                        "decision", "", f"{describe_ranks(silent)} did not respond"
                    ).decode()
                )
            time.sleep(_POLL_S)
        return str(store.get("decision").decode())

    def _decide(self, decision: str) -> None:
        name = signal.Signals(self.notice.signal).name if self.notice is not None else "a signal"
        source = f"{name} at rank {self.notice.rank}" if self.notice is not None else name
        if decision.isdigit():
            self._save_step = int(decision)
            _log.warning(
                "%s: all ranks save at step %s and exit, within %.0f s",
                source,
                decision,
                self.grace_s,
            )
        else:
            _log.warning("%s: no emergency checkpoint: %s", source, decision)
        self._decided.set()


_active: EmergencyCheckpoint | None = None
_longest_save_s = 0.0
_warned_of_short_grace = False


def start_listening(*, chain: bool = True, interrupt: bool = False) -> EmergencyCheckpoint:
    """Install the handlers for SIGTERM and SIGUSR1; idempotent, for the main thread.

    With ``interrupt`` also for SIGINT; a second one ends the process at once.

    From then on these signals no longer terminate the process: the loop has to call :func:`is_due`.
    If the loop does not reach the agreed step, the process is terminated by the signal one second
    before the grace period (HOLDFAST_GRACE_S) ends. With ``chain``, earlier handlers are called
    too; without, a framework's own reaction to the signal cannot end training before the save.
    """
    global _active  # noqa: PLW0603 - one process, one handler of a signal
    if _active is None or _active.closed:
        signals = (*SIGNALS, signal.SIGINT) if interrupt else SIGNALS
        grace_s = settings.read_seconds("HOLDFAST_GRACE_S")
        _active = EmergencyCheckpoint(grace_s, signals, chain=chain)
        _warn_if_grace_too_short()
    return _active


def is_due(step: int) -> bool:
    """Return whether all ranks save now and exit; starts listening on the first call."""
    return (_active or start_listening()).is_due(step)


def exit_rank() -> NoReturn:
    """Exit after the checkpoint is committed; see :meth:`EmergencyCheckpoint.exit_rank`."""
    start_listening().exit_rank()


def stop_listening() -> None:
    """Stop listening: training is over, and SIGTERM has its previous effect again."""
    if _active is not None:
        _active.close()


def announced() -> PreemptionNotice | None:
    """Return the scheduler's signal of this process or another rank; None if there is none."""
    return None if _active is None else _active.notice


def remaining_grace_s() -> float | None:
    """Return the seconds left of the grace period; None before a signal."""
    return None if _active is None else _active.remaining_s


def record_save_duration(save_s: float) -> None:
    """Record how long a save took; warn once on rank 0 if the grace period is shorter."""
    global _longest_save_s  # noqa: PLW0603 - as above
    if save_s > _longest_save_s:
        _longest_save_s = save_s
        _warn_if_grace_too_short()


def _warn_if_grace_too_short() -> None:
    global _warned_of_short_grace  # noqa: PLW0603 - as above
    if _active is None or _warned_of_short_grace or _longest_save_s <= _active.grace_s - _RESERVE_S:
        return
    _warned_of_short_grace = True
    if not settings.read_setting("RANK").value:
        _log.warning(
            "a save takes %s, but the scheduler's grace period is %s: the last checkpoint may "
            "not finish in time; "
            "configure an earlier signal and set HOLDFAST_GRACE_S to match, or save more often",
            format_duration(_longest_save_s),
            format_duration(_active.grace_s),
        )
