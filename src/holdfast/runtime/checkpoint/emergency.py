"""The checkpoint before the end: a scheduler warns with SIGTERM or SIGUSR1, all ranks save at one step, all leave.

For a loop, two calls::

    from holdfast.runtime.checkpoint import emergency
    ...
    if emergency.due(step):              # between two steps: nanoseconds, until a signal comes
        checkpoint.save(step)            # as ever, on all ranks
        emergency.leave()                # ends this rank with 128 + the signal's number

How they agree. Nobody acts alone: a rank that stops between two steps leaves the others waiting in a collective. A
thread in every rank hears the signal (:mod:`hearing`) or reads in the job's store that another rank heard it, and says
for its rank in the store which step it has not begun yet. The highest of them is where all stop: nobody is past it,
and everybody comes to it, since the collectives before it were called by all. A rank waits in :func:`due` for the
others' threads alone, and those never wait for training.

A rank that says nothing for ``AGREE_LIMIT_S`` is dead or frozen: then no checkpoint can be made together, and who got
the signal ends by it, as if nobody had listened. So also where the agent ends the ranks because one of them failed, and
where the signal is the kernel's, as the agent itself is gone: what is left of its ranks is no job that was warned.
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

from holdfast import blackbox, settings
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import duration
from holdfast.runtime import recorder
from holdfast.runtime.checkpoint.hearing import SIGNALS, Ears, end_by
from holdfast.runtime.comm.groups import epoch, job_store

#: A living rank's thread says its step within a look; who says nothing for so long is dead or frozen.
AGREE_LIMIT_S = 5.0
#: How often the store is asked whether another rank was warned; less often where many ranks ask.
LOOK_EVERY_S = 0.25
_RANKS_A_LOOK = 4096
_POLL_S = 0.01
_ORPHAN_S = 0.2
#: So long before the end of the grace period a rank gives up hope of a checkpoint.
_RESERVE_S = 1.0
_NEVER = 1 << 63
#: The first exit status of a process that a signal ended, as shells count. Kubeflow starts a replica again from 128 on.
STATUS = 128
_log = logging.getLogger("holdfast.checkpoint")


class Warned(msgspec.Struct, frozen=True):
    """Who heard what: a global rank, and the number of the signal."""

    rank: int
    signal: int


class Emergency:
    """Hears the scheduler's warning for this rank, and agrees with the others on a step.

    ``grace_s`` is the time from the warning to the end of everything, in seconds.
    """

    def __init__(self, grace_s: float, signals: tuple[signal.Signals, ...] = SIGNALS) -> None:
        self.grace_s = grace_s
        self._ears = Ears(signals)
        self._step = -1
        self._posted = False
        self._at = _NEVER
        self._saving = False
        self._decided = threading.Event()
        self._closed = threading.Event()
        self._epoch = 0
        self._parent = os.getppid()
        #: What was heard, and the monotonic time at which the grace period ends; None before.
        self.warned: Warned | None = None
        self._signalled: signal.Signals | None = None
        self.deadline: float | None = None
        box = settings.path("HOLDFAST_BOX")
        self._teardown = box.with_name(blackbox.TEARDOWN) if box is not None else None
        self._thread = threading.Thread(target=self._watch, name="holdfast emergency", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.close)

    def due(self, step: int) -> bool:
        """Whether all ranks save now and leave. To be called by all of them between two steps, with growing ``step``.

        True on all ranks at the same step, and nowhere before. Costs 0.1 us until a signal came; then once a wait for
        the other ranks' threads, a fraction of a second.
        """
        self._step = step  # before the flag is read: the thread sets the flag before it reads the step
        if not self._posted:
            return False
        self._decided.wait(2 * AGREE_LIMIT_S)
        self._saving = step >= self._at
        return self._saving

    @property
    def closed(self) -> bool:
        """Whether nobody listens any more."""
        return self._closed.is_set()

    @property
    def left_s(self) -> float | None:
        """Seconds until the grace period is over; None where nobody has warned."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    @property
    def status(self) -> int:
        """With which status a rank leaves: 128 + the number of the signal, 143 for SIGTERM and 138 for SIGUSR1."""
        return STATUS + (self.warned.signal if self.warned is not None else int(signal.SIGTERM))

    def leave(self) -> NoReturn:
        """End this rank after its checkpoint; all ranks call it. Raises SystemExit with :attr:`status`."""
        heard = self.warned.signal if self.warned is not None else 0
        note = {"signal": heard, "step": self._step, "status": self.status, "time": time.time()}
        recorder.note_json(blackbox.Note.PREEMPTED, note)
        raise SystemExit(self.status)

    def close(self) -> None:
        """Listen no more; what handled the signals before does so again."""
        atexit.unregister(self.close)
        if not self._closed.is_set():
            self._closed.set()
            self._ears.wake()
            self._thread.join(10.0)  # a thread that comes out of C++ while Python ends aborts the process
            self._ears.close()

    # The thread

    def _forked(self) -> None:
        self._closed.set()
        atexit.unregister(self.close)

    def _watch(self) -> None:
        while not self._closed.is_set():
            ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
            heard = self._ears.wait(LOOK_EVERY_S * max(1.0, ranks / _RANKS_A_LOOK))
            if self._closed.is_set():
                return
            if heard is not None and self._ends_anyway(heard):
                end_by(heard)
            self._mind_deadline()
            try:
                self._look(heard)
            except (RuntimeError, ValueError, OSError):  # torch's errors of the network are RuntimeErrors
                self._decided.set()
                if heard is not None:
                    end_by(heard, lambda: _log.warning("no emergency checkpoint: the job's store does not answer"))

    def _ends_anyway(self, heard: signal.Signals) -> bool:
        """Whether the agent ends the ranks because one of them failed, or is gone: then there is nobody to save with.

        A rank that saves already is about to leave, and may; others may have left before it.
        """
        if self._saving or heard != signal.SIGTERM:
            return False
        return (self._teardown is not None and self._teardown.exists()) or self._is_orphan()

    def _is_orphan(self) -> bool:
        """The agent is gone: the kernel says so as its first thread goes, a moment before all have gone."""
        until = time.monotonic() + _ORPHAN_S
        while os.getppid() == self._parent:
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True

    def _mind_deadline(self) -> None:
        """End by the signal where the step at which all were to save is not reached in time: SIGKILL would be next."""
        if self.warned is None or self._saving or (self.left_s or 0.0) > _RESERVE_S or self._signalled is None:
            return
        _log.warning("no emergency checkpoint: step %s was not reached within %.0f s", self._at, self.grace_s)
        end_by(self._signalled)

    def _look(self, heard: signal.Signals | None) -> None:
        alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
        self._signalled = self._signalled or heard
        mine = None if heard is None else Warned(0 if alone else dist.get_rank(), int(heard))
        if not alone and epoch() != self._epoch:  # other ranks, another store
            self._epoch, self._posted, self._at = epoch(), False, _NEVER
            self._decided.clear()
        if self._posted:
            return  # a second signal says nothing new
        if alone:
            if mine is not None:
                self._begin(mine)
                self._decide(str(self._step + 1))
            return
        store = PrefixStore(f"holdfast/emergency/{self._epoch}", job_store())
        if mine is not None:
            self._begin(
                msgspec.json.decode(store.compare_set("warned", "", msgspec.json.encode(mine).decode()), type=Warned)
            )
        elif store.check(["warned"]):
            self._begin(msgspec.json.decode(store.get("warned"), type=Warned))
        else:
            return
        self._decide(self._agree(store))
        if self._at == _NEVER and mine is not None:
            end_by(signal.Signals(mine.signal))

    def _begin(self, warned: Warned) -> None:
        self.warned = warned
        self.deadline = time.monotonic() + self.grace_s
        self._posted = True

    def _agree(self, store: Store) -> str:
        """Say this rank's step and hear what all come to: a step, or a sentence that says why there is none."""
        ranks, rank = dist.get_world_size(), dist.get_rank()
        store.set(str(rank), str(self._step + 1))
        if store.add("said", 1) == ranks:
            steps = [int(store.get(str(each))) for each in range(ranks)]
            return str(store.compare_set("decision", "", str(max(steps))).decode())
        # Who heard it first waits for less long than the others, which may have read it a look later.
        own = self.warned is not None and self.warned.rank == rank
        until = time.monotonic() + AGREE_LIMIT_S - (0.0 if not own else 1.0)
        while not store.check(["decision"]):
            if time.monotonic() > until:
                silent = [each for each in range(ranks) if not store.check([str(each)])]
                return str(store.compare_set("decision", "", f"{say_ranks(silent)} did not answer").decode())
            time.sleep(_POLL_S)
        return str(store.get("decision").decode())

    def _decide(self, decision: str) -> None:
        name = signal.Signals(self.warned.signal).name if self.warned is not None else "a signal"
        who = f"{name} at rank {self.warned.rank}" if self.warned is not None else name
        if decision.isdigit():
            self._at = int(decision)
            _log.warning("%s: all ranks save at step %s and leave, within %.0f s", who, decision, self.grace_s)
        else:
            _log.warning("%s: no emergency checkpoint, as %s", who, decision)
        self._decided.set()


_listening: Emergency | None = None
_expected_s = 0.0
_told = False


def listen() -> Emergency:
    """Have this rank hear SIGTERM and SIGUSR1 from now on; to be called in the main thread. Once more does nothing.

    From then on these signals do not end this process by themselves: the loop has to ask :func:`due`. What agrees to a
    step that the loop does not reach ends by the signal a second before the grace period (HOLDFAST_GRACE_S) is over.
    """
    global _listening  # noqa: PLW0603 - one process, one handler of a signal
    if _listening is None or _listening.closed:
        _listening = Emergency(settings.seconds("HOLDFAST_GRACE_S"))
        _compare()
    return _listening


def due(step: int) -> bool:
    """Whether all ranks save now and leave; see :meth:`Emergency.due`. The first call listens, where nobody did."""
    return (_listening or listen()).due(step)


def leave() -> NoReturn:
    """End this rank, once its checkpoint is declared; see :meth:`Emergency.leave`."""
    listen().leave()


def stop() -> None:
    """Listen no more: training is over, and SIGTERM does again what it did before."""
    if _listening is not None:
        _listening.close()


def left_s() -> float | None:
    """Seconds until the grace period is over; None where nobody has warned."""
    return None if _listening is None else _listening.left_s


def expect(save_s: float) -> None:
    """A save takes about so long, as was measured: say it where the grace period is shorter, once, on rank 0."""
    global _expected_s  # noqa: PLW0603 - as above
    if save_s > _expected_s:
        _expected_s = save_s
        _compare()


def _compare() -> None:
    global _told  # noqa: PLW0603 - as above
    if _listening is None or _told or _expected_s <= _listening.grace_s - _RESERVE_S:
        return
    _told = True
    if not settings.read("RANK").value:
        _log.warning(
            "a save takes %s, and a scheduler's warning gives %s: the last checkpoint may not be finished in time; "
            "have it warn earlier and say so with HOLDFAST_GRACE_S, or save more often",
            duration(_expected_s), duration(_listening.grace_s),
        )  # fmt: skip
