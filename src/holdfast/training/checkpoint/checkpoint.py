"""``holdfast.Checkpoint``: saving and loading.

Save: rank 0 creates a staging folder → every rank writes its shards → rank 0 writes index and
manifest and renames the folder → every rank is notified. An asynchronous save does this in a
thread, from a copy. Load: find the newest valid checkpoint in all backends → every rank reads its
shards.
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

from holdfast import recorder
from holdfast.core import checkpoint_manifest, settings
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.core.errors import CheckpointFailed, InvalidValue, UnknownName
from holdfast.training.checkpoint.loading import load_checkpoint, verify_checkpoint
from holdfast.training.checkpoint.manager import CheckpointManager
from holdfast.training.checkpoint.snapshot import StateSnapshot
from holdfast.training.checkpoint.state import Models, Optimizers, TrainingState
from holdfast.training.checkpoint.storage.hashing import VerifiedFiles
from holdfast.training.checkpoint.storage.retention import RetentionPolicy
from holdfast.training.checkpoint.store_agreement import StoreAgreement, to_checkpoint_failed
from holdfast.training.checkpoint.write_plan import SavePlanner
from holdfast.training.checkpoint.writing import SaveTask
from holdfast.training.collectives.groups.group_info import GenerationCounter

_log = logging.getLogger("holdfast.checkpoint")
#: Save timeout: this factor times the longest save so far, within these bounds, in seconds.
_TIMEOUT_FACTOR, _MIN_TIMEOUT_S, _MAX_TIMEOUT_S = 10.0, 60.0, 4 * 3600.0
_POLL_S = 0.05
#: Numbers the checkpoint objects of this process; all ranks create them in the same order.
_checkpoint_numbers = GenerationCounter()

#: Called with folder and manifest after each commit, on every rank; for an asynchronous save in the
#: writing thread. It must return quickly and must not raise: copy and delete in a thread instead.
CommitListener = Callable[[Path, Manifest], None]


class CheckpointOptions(TypedDict, total=False):
    """When the loop saves, what is retained, and where copies go (see :class:`Checkpoint`)."""

    every: str | float | None
    every_steps: int | None
    keep_last: int | None
    keep_every: int | None
    best: tuple[str, Literal["min", "max"]] | None
    copies: Sequence[str]
    asynchronous: bool
    allow_fresh_start: bool


@dataclass(frozen=True)
class SaveResult:
    """One committed checkpoint.

    Training was blocked for ``blocked_s`` seconds; the whole save took ``took_s`` seconds.
    """

    step: int
    folder: Path
    manifest: Manifest
    blocked_s: float
    took_s: float


@dataclass(frozen=True)
class LoadResult:
    """One loaded checkpoint.

    ``config`` and ``values`` are those passed to the checkpoint; ``world`` ranks saved it. ``own``
    is True if this rank restored its own random states and stateful objects (the number of ranks is
    unchanged).
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
class _PendingSave:
    """One save in progress."""

    task: SaveTask
    began: float
    blocked_s: float = 0.0
    thread: threading.Thread | None = None
    failure: CheckpointFailed | None = None
    saved: SaveResult | None = None


_KEYWORDS = (
    *CheckpointOptions.__annotations__,
    *("root", "model", "optimizer", "scheduler", "scaler", "stateful", "config"),
)


class Checkpoint:
    """Save and restore a job; ``root`` is a folder that all ranks share.

    ``model`` and ``optimizer`` are single objects or ``{name: …}``: plain, in DDP, FSDP2 or
    torch.compile. ``stateful`` maps names to further objects: modules (an average of weights) are
    saved like models; any other object with ``state_dict`` and ``load_state_dict`` is saved per
    rank. Random states of Python, numpy and torch are always included. ``config`` is plain data
    that a restored job gets back.

    ``holdfast.loop`` applies the options: ``every`` ("10m", or seconds) or ``every_steps`` set the
    save interval; ``keep_last``, ``keep_every`` (steps) and ``best`` (``("loss", "min")``, from the
    values passed to :meth:`save`) select what is retained; ``copies`` are further locations
    (folders, URLs, ``"memory"``), which :meth:`load` reads too. ``asynchronous`` writes in a
    background thread. ``allow_fresh_start``: if checkpoints are expected and none can be read,
    :meth:`load` returns None instead of raising.

    Functions in :attr:`after_commit` are called after each checkpoint (:data:`CommitListener`).

    Call every method on all ranks; its outcome is the same on all of them.

    Raises:
        InvalidValue: an option is invalid.
        UnknownName: an option does not exist; names similar ones.
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
        **options: Unpack[CheckpointOptions],
    ) -> None:
        unknown = set(options) - set(CheckpointOptions.__annotations__)
        if unknown:
            raise UnknownName("keyword of Checkpoint:", min(unknown), _KEYWORDS)
        self.root = Path(root).expanduser().absolute()
        self.options = options
        self.asynchronous = options.get("asynchronous", True)
        policy = RetentionPolicy(
            last=options.get("keep_last"), every=options.get("keep_every"), best=options.get("best")
        )
        self.manager = CheckpointManager(
            self.root,
            options.get("copies") or (),
            policy,
            allow_fresh_start=options.get("allow_fresh_start", False),
        )
        self.after_commit: list[CommitListener] = [self.manager.on_commit]
        #: The newest committed checkpoint that this process saved or loaded.
        self.last: SaveResult | None = None
        self.state = TrainingState(model, optimizer, scheduler, scaler, stateful, config)
        self._planner, self._snapshot = SavePlanner(), StateSnapshot()
        self._number, self._agreement_numbers = _checkpoint_numbers.next(), count()
        self._pending: _PendingSave | None = None
        self._leftovers_removed = False
        self._longest_save_s = 0.0

    def save(
        self,
        step: int,
        *,
        values: Mapping[str, Any] | None = None,
        asynchronous: bool | None = None,
    ) -> None:
        """Save the state after ``step`` optimizer steps, and ``values`` (loss, accuracy) with it.

        An asynchronous save returns when the state is copied; :meth:`wait` reports its outcome. If
        the previous save is still running (:attr:`busy`), this call first waits for it.

        Raises:
            CheckpointFailed: the save failed, on all ranks; asynchronous: it could not start.
            InvalidValue: ``values`` is not plain data.
        """
        self._finish_pending(quietly=True)
        began = time.monotonic()
        in_background = (
            self.asynchronous if asynchronous is None else asynchronous
        ) and not self.state.engines
        agreement = self._new_agreement(f"saving step {step}")
        task = self._prepare_task(
            step, _plain_values(values), agreement, in_background=in_background
        )
        self._pending = pending = _PendingSave(task=task, began=began)
        if in_background:
            pending.thread = threading.Thread(
                target=self._run_save, args=(pending,), name="holdfast-checkpoint"
            )
            pending.blocked_s = time.monotonic() - began
            pending.thread.start()
        else:
            with recorder.phase("checkpoint", self._timeout_s(agreement)):
                self._run_save(pending)
            self._finish_pending(quietly=False)

    def wait(self) -> SaveResult | None:
        """Wait for the save in progress; return the newest committed checkpoint.

        Raises:
            CheckpointFailed: that save failed (raised once); earlier checkpoints are unchanged.
        """
        self._finish_pending(quietly=False)
        return self.last

    @property
    def busy(self) -> bool:
        """Return whether a save is in progress."""
        thread = self._pending.thread if self._pending else None
        return thread is not None and thread.is_alive()

    def load(
        self, folder: str | Path | None = None, *, before: int | None = None, strict: bool = True
    ) -> LoadResult | None:
        """Restore the newest valid checkpoint (of a step below ``before``), or that in ``folder``.

        Returns None if there is none. Verifies every byte against the manifest before restoring
        anything. ``strict=False`` restores what both job and checkpoint have and leaves the rest
        unchanged. Any number of ranks may load.

        Raises:
            CheckpointUnreadable: ``folder`` is not a valid checkpoint.
            CheckpointMismatch: it is of another model; lists every name that does not match.
            CheckpointFailed: a rank could not read it, or did not answer in time; or none was found
                although checkpoints were saved, or a copy could not be searched.
        """
        self._finish_pending(quietly=True)
        agreement = self._new_agreement("loading a checkpoint")
        with recorder.phase("checkpoint", agreement.limit_s), VerifiedFiles() as verified:
            chosen, skipped = self._select(agreement, folder, before, verified)
            if chosen is None:
                return None
            with self.manager.reading(checkpoint_manifest.step_of_folder(chosen)):
                manifest, rank_state = load_checkpoint(
                    chosen, self.state, agreement, verified, strict=strict
                )
        self.last = SaveResult(manifest.step, chosen, manifest, 0.0, 0.0)
        self._longest_save_s = max(self._longest_save_s, manifest.at - manifest.began)
        recorder.record_saved_step(manifest.step, str(chosen), loaded=True)
        return LoadResult(
            step=manifest.step,
            folder=chosen,
            manifest=manifest,
            values=manifest.values,
            config=rank_state["config"],
            world=manifest.ranks,
            own=rank_state["rank"] == agreement.rank and rank_state["world"] == agreement.world,
            skipped=skipped,
        )

    def claim(self) -> None:
        """Make this job the owner of the folder, before its first save.

        Raises:
            CheckpointFailed: another job saves into it.
        """
        self.manager.claim(self._new_agreement("owning the checkpoint folder"))

    # ---- one save

    def _new_agreement(self, subject: str) -> StoreAgreement:
        name = f"{self._number}/{next(self._agreement_numbers)}"
        return StoreAgreement(name, subject, settings.read_seconds("HOLDFAST_CHECKPOINT_S"))

    def _prepare_task(
        self, step: int, values: dict[str, Any], agreement: StoreAgreement, *, in_background: bool
    ) -> SaveTask:
        task = SaveTask(
            root=self.root,
            step=step,
            values=values,
            agreement=agreement,
            remove_leftovers=not self._leftovers_removed,
        )
        self._leftovers_removed = True
        task.engines = self.state.engines
        try:
            tensors = self.state.tensors()
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            task.failure = to_checkpoint_failed(agreement.subject, error)
            return task
        task.plan = self._planner.plan(tensors, agreement)
        try:
            task.rank_state = self.state.rank_state(agreement.rank, agreement.world)
            task.read_item = self._planner.torch_planner.resolve_data
            if in_background:
                self._snapshot.take(task.plan, self._planner.torch_planner.resolve_data)
                task.read_item = self._snapshot.get
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            task.failure = to_checkpoint_failed(agreement.subject, error)
        return task

    def _run_save(self, pending: _PendingSave) -> None:
        task = pending.task
        try:
            folder, manifest = task.run()
        except Exception as error:  # noqa: BLE001 - reported to all ranks
            pending.failure = to_checkpoint_failed(task.agreement.subject, error)
            self._planner.forget()
            return
        took_s = time.monotonic() - pending.began
        self._longest_save_s = max(self._longest_save_s, took_s)
        pending.saved = SaveResult(task.step, folder, manifest, pending.blocked_s or took_s, took_s)
        self.last = pending.saved
        recorder.record_saved_step(task.step, str(folder))
        for listener in self.after_commit:
            try:
                listener(folder, manifest)
            except Exception:  # noqa: BLE001 - the checkpoint itself is valid
                _log.exception("a listener failed after the checkpoint of step %d", task.step)

    def _finish_pending(self, *, quietly: bool) -> None:
        pending = self._pending
        if pending is None:
            return
        if pending.thread is not None:
            self._join(pending.thread, pending.task)
        self._pending = None
        if pending.failure is not None:
            if not quietly:
                raise pending.failure
            _log.warning("%s", pending.failure)

    def _join(self, thread: threading.Thread, task: SaveTask) -> None:
        """Wait for the thread; until this rank has written its own files, the others wait for it.

        Each rank makes one store call per save, once its files are written.
        """
        with recorder.extend_phase("checkpoint", self._timeout_s(task.agreement)):
            while thread.is_alive() and not task.own_files_written.wait(_POLL_S):
                pass
            with (
                recorder.record_store_call("checkpoint")
                if task.agreement.world > 1
                else nullcontext()
            ):
                thread.join()

    def _timeout_s(self, agreement: StoreAgreement) -> float:
        """Return how long a rank may stay silent in a save: HOLDFAST_CHECKPOINT_S, else learned."""
        if (
            not self._longest_save_s
            or settings.read_setting("HOLDFAST_CHECKPOINT_S").origin != "default"
        ):
            return agreement.limit_s
        return min(max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * self._longest_save_s), _MAX_TIMEOUT_S)

    # ---- one load

    def _select(
        self,
        agreement: StoreAgreement,
        folder: str | Path | None,
        before: int | None,
        verified: VerifiedFiles,
    ) -> tuple[Path | None, tuple[str, ...]]:
        """Return the verified checkpoint to load, and a reason for each one skipped."""
        if folder is None:
            return self.manager.newest(agreement, before, verified)
        chosen = Path(folder).expanduser().absolute()
        verify_checkpoint(chosen, agreement, verified)
        return chosen, ()


def _plain_values(values: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        plain = msgspec.json.decode(
            msgspec.json.encode(dict(values or {}), enc_hook=_to_python_number)
        )
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InvalidValue(
            "save(values=…)", why=str(error), next_step="pass numbers, strings, lists and dicts"
        ) from error
    return dict(plain)


def _to_python_number(value: Any) -> Any:
    """Convert a one-element tensor or numpy number to a Python number."""
    try:
        return value.item()
    except Exception:  # noqa: BLE001 - the type has no usable item()
        raise TypeError(f"{type(value).__name__} is not plain data") from None
