"""Lightning's Trainer: verified checkpoints, resumable data, NaN detection.

from holdfast.training.callbacks.lightning import HoldfastCallback, resumable

guard = HoldfastCallback("checkpoints", every="10m")
trainer = Trainer(..., callbacks=[guard])
trainer.fit(model, resumable(loader), ckpt_path=guard.newest())
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import MissingExtra
from holdfast.recorder import phase
from holdfast.training.callbacks import verified_checkpoints
from holdfast.training.callbacks.framework_hooks import FrameworkHooks
from holdfast.training.loop import data_position as positions
from holdfast.training.loop.hooks import DEFAULT_SPIKE, current_rank, world_size


def _callback() -> Any:
    """Return Lightning's Callback from whichever of its two packages is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return import_module(name).Callback
    raise MissingExtra("lightning")


_Callback: Any = _callback()
CHECKPOINT_FILE = "lightning.ckpt"


class HoldfastCallback(_Callback):  # type: ignore[misc]
    """Save to ``folder`` at an interval, at the end of training, and on preemption.

    The interval is ``every`` (a duration) or ``every_steps``. Retains ``keep_last`` checkpoints.
    The loss is the return value of ``training_step``.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: str | float | None = "10m",
        every_steps: int | None = None,
        keep_last: int = 3,
        spike: float | None = DEFAULT_SPIKE,
    ) -> None:
        self.folder = Path(folder).absolute()
        self._options: dict[str, Any] = {"every": every, "every_steps": every_steps, "spike": spike}
        self._keep_last = max(1, keep_last)
        self._hooks: FrameworkHooks | None = None

    def newest(self) -> str | None:
        """Return the newest valid checkpoint, for ``ckpt_path``; None if there is none."""
        folder = verified_checkpoints.newest(self.folder)
        return None if folder is None else str(folder / CHECKPOINT_FILE)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's signature
        """Start counting steps."""
        # Lightning's handler would end training at the next batch, before all ranks have saved.
        self._hooks = FrameworkHooks(
            self.folder, lambda: self._save(trainer), chain_signals=False, **self._options
        )
        self._hooks.start(trainer.global_step)

    def on_train_batch_start(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Begin the step; one of several batches (``accumulate_grad_batches``) begins once."""
        if self._hooks is not None and self._hooks.step == trainer.global_step:
            self._hooks.begin()

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Report the loss, and save when due."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._hooks is not None and self._hooks.step == trainer.global_step:
            if isinstance(loss, torch.Tensor | float):
                self._hooks.report(loss=loss)
            self._hooks.end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save if needed, and stop listening for signals."""
        if self._hooks is not None:
            self._hooks.save()
            self._hooks.finish()
            self._hooks = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Stop listening for signals; warn if an announced checkpoint was not saved."""
        if self._hooks is not None:
            self._hooks.stop(exception)
            self._hooks = None

    def _save(self, trainer: Any) -> None:
        """On all ranks: write a staging folder, seal it, and rename it on rank 0."""
        name = checkpoint_manifest.folder_name(trainer.global_step)
        staged, final = self.folder / f"{checkpoint_manifest.STAGING}{name}", self.folder / name
        with phase("checkpoint"):
            if current_rank() == 0:
                shutil.rmtree(staged, ignore_errors=True)
                staged.mkdir(parents=True)
            trainer.save_checkpoint(staged / CHECKPOINT_FILE)
            verified_checkpoints.seal(staged, trainer.global_step, final)
        if current_rank() == 0:
            for expired in checkpoint_manifest.folders_newest_first(self.folder)[self._keep_last :]:
                shutil.rmtree(expired, ignore_errors=True)


class _ResumableLoader:
    """A loader whose position Lightning saves with its own state."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._position = positions.position_of(loader, world_size())

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        # Lightning counts batches, and does not request the one after the last.
        if self._position.remaining() == 0:
            self._position.next_epoch()
        for batch in self._position.batches():
            self._position.advance()  # Lightning fetches a batch right before training on it
            yield batch
        self._position.next_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return the data position."""
        return self._position.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position."""
        self._position.restore(state)


def resumable(loader: Iterable[Any]) -> Any:
    """Return the loader for ``trainer.fit``, resumable in the middle of an epoch.

    With several ranks, give it a ``DistributedSampler``: Lightning adds none to a foreign loader.
    """
    return _ResumableLoader(loader)
