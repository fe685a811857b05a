"""``holdfast.Checkpoint``: saving and loading, and what happens in which order.

save    begin: rank 0 makes a staged folder ─▶ every rank writes its pieces ─▶ rank 0 writes index and manifest, and
        renames the folder ─▶ every rank hears of it. Asynchronous: all of that in a thread, over a copy.
load    the newest valid one over all places (resume) ─▶ every rank reads what it needs
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from holdfast import manifest, settings
from holdfast.errors import BadValue, CheckpointFailed
from holdfast.manifest import Manifest
from holdfast.runtime import recorder
from holdfast.runtime.checkpoint.keeper import Keeper
from holdfast.runtime.checkpoint.loading import load_from, proven
from holdfast.runtime.checkpoint.plan import Planner
from holdfast.runtime.checkpoint.retention import Keep
from holdfast.runtime.checkpoint.rounds import Round, as_failure
from holdfast.runtime.checkpoint.snapshot import Snapshot
from holdfast.runtime.checkpoint.state import Models, Optimizers, State
from holdfast.runtime.checkpoint.writing import Work
from holdfast.runtime.comm.groups import Numbers

_log = logging.getLogger("holdfast.checkpoint")
#: A save may take so many times as long as the longest before it, and so many seconds at least and at most.
_FACTOR, _LEAST_S, _MOST_S = 10.0, 60.0, 4 * 3600.0
_LOOK_S = 0.05
#: Checkpoints of this process; made in the same order on all ranks, as process groups are.
_numbers = Numbers()

#: Called after a checkpoint was declared, on every rank, with its folder and manifest; in the writing thread where the
#: save was asynchronous. It must be quick and must not raise: copying and removing belong into threads of their own.
AfterCommit = Callable[[Path, Manifest], None]


class Options(TypedDict, total=False):
    """When the loop saves, what is kept, and where else it goes (see :class:`Checkpoint`)."""

    every: str | float | None
    every_steps: int | None
    keep_last: int | None
    keep_every: int | None
    best: tuple[str, Literal["min", "max"]] | None
    copies: Sequence[str]
    asynchronous: bool


@dataclass(frozen=True)
class Saved:
    """One declared checkpoint; training stood still for ``blocked_s`` seconds, and it took ``took_s`` in all."""

    step: int
    folder: Path
    manifest: Manifest
    blocked_s: float
    took_s: float


@dataclass(frozen=True)
class Restored:
    """What was loaded. ``config`` and ``values`` are as given to the checkpoint; ``world`` ranks had saved it.

    ``own`` says whether this rank got random states and stateful objects of its own (there were as many ranks).
    """

    step: int
    folder: Path
    manifest: Manifest
    values: dict[str, Any]
    config: Any
    world: int
    own: bool
    skipped: tuple[str, ...] = ()


@dataclass
class _Pending:
    """One save under way."""

    work: Work
    began: float
    blocked_s: float = 0.0
    thread: threading.Thread | None = None
    failure: CheckpointFailed | None = None
    saved: Saved | None = None


class Checkpoint:
    """Saves and restores a job; ``root`` is a folder that all ranks share.

    ``model`` and ``optimizer`` are one each, or ``{name: …}``: plain, in DDP, FSDP2 or torch.compile. ``stateful`` are
    further objects by name: modules (an average of weights) are saved as models are, anything else with ``state_dict``
    and ``load_state_dict`` is saved by each rank for itself. Random states of Python, numpy and torch belong to it.
    ``config`` is plain data that a restored job gets back.

    The options are obeyed by ``holdfast.loop``: ``every`` ("10m", or seconds) or ``every_steps`` between two saves;
    ``keep_last``, ``keep_every`` (steps) and ``best`` (``("loss", "min")``, of the values given to :meth:`save`) are
    kept, and others removed; ``copies`` are further places (folders, URLs, ``"memory"``), from which :meth:`load` takes
    as well (:mod:`keeper`). ``asynchronous`` writes beside training.

    Functions in :attr:`after_commit` are called after each checkpoint (:data:`AfterCommit`).

    All methods are to be called on all ranks alike, and outcomes are the same on all of them.

    Raises:
        BadValue: an option that cannot be.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        model: Models = None,
        optimizer: Optimizers = None,
        scheduler: Any = None,
        scaler: Any = None,
        stateful: Mapping[str, Any] | None = None,
        config: Any = None,
        **options: Unpack[Options],
    ) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise BadValue(f"Checkpoint({min(unknown)}=…)", why="there is no such option")
        self.root = Path(root).expanduser().absolute()
        self.options = options
        self.asynchronous = options.get("asynchronous", True)
        keep = Keep(last=options.get("keep_last"), every=options.get("keep_every"), best=options.get("best"))
        self.keeper = Keeper(self.root, options.get("copies") or (), keep)
        self.after_commit: list[AfterCommit] = [self.keeper.declared]
        #: The newest checkpoint that this process knows to be declared (saved, or loaded).
        self.last: Saved | None = None
        self.state = State(model, optimizer, scheduler, scaler, stateful, config)
        self._planner, self._snapshot = Planner(), Snapshot()
        self._number, self._rounds = _numbers.next(), count()
        self._pending: _Pending | None = None
        self._cleared = False
        self._longest_s = 0.0

    def save(self, step: int, *, values: Mapping[str, Any] | None = None, asynchronous: bool | None = None) -> None:
        """Save the state after ``step`` optimizer steps; ``values`` (loss, accuracy) are kept in the manifest.

        An asynchronous save returns when the state was copied; whether it succeeded is known by :meth:`wait`. Where the
        one before it is still being written, it is waited for first (:attr:`busy` tells).

        Raises:
            CheckpointFailed: it could not be saved, on all ranks alike; asynchronous: it could not even begin.
            BadValue: ``values`` is not plain data.
        """
        self._settle(quietly=True)
        began = time.monotonic()
        beside = (self.asynchronous if asynchronous is None else asynchronous) and not self.state.engines
        around = self._round(f"saving step {step}")
        work = self._prepared(step, _plain(values), around, beside=beside)
        self._pending = pending = _Pending(work=work, began=began)
        if beside:
            pending.thread = threading.Thread(target=self._carry_out, args=(pending,), name="holdfast-checkpoint")
            pending.blocked_s = time.monotonic() - began
            pending.thread.start()
        else:
            with recorder.phase("checkpoint", self._patience_s(around)):
                self._carry_out(pending)
            self._settle(quietly=False)

    def wait(self) -> Saved | None:
        """Wait until the save under way is over; the newest checkpoint that was declared.

        Raises:
            CheckpointFailed: the save that was waited for failed (told once); those before it are as they were.
        """
        self._settle(quietly=False)
        return self.last

    @property
    def busy(self) -> bool:
        """Whether a save is under way."""
        thread = self._pending.thread if self._pending else None
        return thread is not None and thread.is_alive()

    def load(
        self, folder: str | Path | None = None, *, before: int | None = None, strict: bool = True
    ) -> Restored | None:
        """Restore the newest valid checkpoint (of a step below ``before``), or the one in ``folder``.

        None: there is none.

        Every byte is held against the manifest before anything is taken. ``strict=False`` takes what both the job and
        the checkpoint have, and leaves the rest as it is. Any number of ranks may load.

        Raises:
            CheckpointUnreadable: ``folder`` is no valid checkpoint.
            CheckpointMismatch: it is one of another model; every name that does not fit is told.
            CheckpointFailed: a rank could not read it, or did not come.
        """
        self._settle(quietly=True)
        around = self._round("loading a checkpoint")
        with recorder.phase("checkpoint", around.limit_s):
            chosen, skipped = self._chosen(around, folder, before)
            if chosen is None:
                return None
            with self.keeper.reading(manifest.step_of(chosen)):
                found, own = load_from(chosen, self.state, around, strict=strict)
        self.last = Saved(found.step, chosen, found, 0.0, 0.0)
        self._longest_s = max(self._longest_s, found.at - found.began)
        recorder.saved(found.step, str(chosen), loaded=True)
        return Restored(
            step=found.step, folder=chosen, manifest=found, values=found.values, config=own["config"],
            world=found.ranks, own=own["rank"] == around.rank and own["world"] == around.world,
            skipped=skipped,
        )  # fmt: skip

    # ---- one save

    def _round(self, subject: str) -> Round:
        name = f"{self._number}/{next(self._rounds)}"
        return Round(name, subject, settings.seconds("HOLDFAST_CHECKPOINT_S"))

    def _prepared(self, step: int, values: dict[str, Any], around: Round, *, beside: bool) -> Work:
        work = Work(root=self.root, step=step, values=values, around=around, clear=not self._cleared)
        self._cleared = True
        work.engines = self.state.engines
        try:
            tensors = self.state.tensors()
        except Exception as error:  # noqa: BLE001 - as below
            work.failure = as_failure(around.subject, error)
            return work
        work.plan = self._planner.plan(tensors, around)
        try:
            work.own = self.state.own(around.rank, around.world)
            work.piece = self._planner.torchs.resolve_data
            if beside:
                self._snapshot.take(work.plan, self._planner.torchs.resolve_data)
                work.piece = self._snapshot.get
        except Exception as error:  # noqa: BLE001 - the others hear of it where they wait for this rank
            work.failure = as_failure(around.subject, error)
        return work

    def _carry_out(self, pending: _Pending) -> None:
        work = pending.work
        try:
            folder, found = work.carry_out()
        except Exception as error:  # noqa: BLE001 - it is told by wait()
            pending.failure = as_failure(work.around.subject, error)
            self._planner.forget()
            return
        took_s = time.monotonic() - pending.began
        self._longest_s = max(self._longest_s, took_s)
        pending.saved = Saved(work.step, folder, found, pending.blocked_s or took_s, took_s)
        self.last = pending.saved
        recorder.saved(work.step, str(folder))
        for listener in self.after_commit:
            try:
                listener(folder, found)
            except Exception:  # noqa: BLE001 - the checkpoint itself is whole
                _log.exception("what follows the checkpoint of step %d failed", work.step)

    def _settle(self, *, quietly: bool) -> None:
        pending = self._pending
        if pending is None:
            return
        if pending.thread is not None:
            self._join(pending.thread, pending.work)
        self._pending = None
        if pending.failure is not None:
            if not quietly:
                raise pending.failure
            _log.warning("%s", pending.failure)

    def _join(self, thread: threading.Thread, work: Work) -> None:
        """Wait for the thread, so that a rank whose own part is not written is seen to be the one that others wait for.

        Each rank makes one store call a save, and makes it when it is done, or waits for others.
        """
        with recorder.patience("checkpoint", self._patience_s(work.around)):
            while thread.is_alive() and not work.own_done.wait(_LOOK_S):
                pass
            with recorder.store_call("checkpoint") if work.around.world > 1 else nullcontext():
                thread.join()

    def _patience_s(self, around: Round) -> float:
        """How long a rank may be silent in a save before it is taken for stuck: learned, unless the user has said."""
        if not self._longest_s or settings.read("HOLDFAST_CHECKPOINT_S").origin != "default":
            return around.limit_s
        return min(max(_LEAST_S, _FACTOR * self._longest_s), _MOST_S)

    # ---- one load

    def _chosen(
        self, around: Round, folder: str | Path | None, before: int | None
    ) -> tuple[Path | None, tuple[str, ...]]:
        """What to load, every byte of it verified, and what was passed over."""
        if folder is None:
            return self.keeper.newest(around, before)
        chosen = Path(folder).expanduser().absolute()
        proven(chosen, around)
        return chosen, ()


def _plain(values: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(msgspec.json.encode(dict(values or {}), enc_hook=_number))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise BadValue("save(values=…)", why=str(error), next_step="give numbers, texts, lists and dicts") from error
    return dict(found)


def _number(value: Any) -> Any:
    """A tensor or numpy number of one element as Python's."""
    try:
        return value.item()
    except Exception:  # noqa: BLE001 - a stranger's class
        raise TypeError(f"{type(value).__name__} is not plain data") from None
