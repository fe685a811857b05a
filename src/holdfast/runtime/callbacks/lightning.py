"""Lightning's Trainer: checkpoints that are proven whole, data that goes on where it was, NaN that stops.

from holdfast.runtime.callbacks.lightning import HoldfastCallback, resumable

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

from holdfast import manifest
from holdfast.errors import MissingExtra
from holdfast.runtime.callbacks import sealed
from holdfast.runtime.callbacks.driven import Driven
from holdfast.runtime.loop import position as positions
from holdfast.runtime.loop.hooks import SPIKE, rank, ranks
from holdfast.runtime.recorder import phase


def _callback() -> Any:
    """Lightning's Callback, of whichever of its two names is installed."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return import_module(name).Callback
    raise MissingExtra("lightning")


_Callback: Any = _callback()
FILE = "lightning.ckpt"


class HoldfastCallback(_Callback):  # type: ignore[misc]
    """Saves to ``folder`` every so often (``every``, a time, or ``every_steps``), at the end, and before a preemption.

    ``keep_last`` checkpoints are kept. The loss is what ``training_step`` returns.
    """

    def __init__(
        self, folder: str | Path, *, every: str | float | None = "10m", every_steps: int | None = None,
        keep_last: int = 3, spike: float | None = SPIKE,
    ) -> None:  # fmt: skip
        self.folder = Path(folder).absolute()
        self._options: dict[str, Any] = {"every": every, "every_steps": every_steps, "spike": spike}
        self._keep_last = max(1, keep_last)
        self._hooks: Driven | None = None

    def newest(self) -> str | None:
        """The newest checkpoint that is whole, for ``ckpt_path``; None where there is none."""
        found = sealed.newest(self.folder)
        return None if found is None else str(found / FILE)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - theirs, as below
        """Begin to count."""
        self._hooks = Driven(lambda: self._save(trainer), **self._options)
        self._hooks.start(trainer.global_step)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Say the step. A step of several batches (``accumulate_grad_batches``) begins once."""
        if self._hooks is not None and self._hooks.step == trainer.global_step:
            self._hooks.begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int  # noqa: ARG002
    ) -> None:  # fmt: skip
        """Look at the loss, and save where it is time."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if self._hooks is not None and self._hooks.step == trainer.global_step:
            if isinstance(loss, torch.Tensor | float):
                self._hooks.report(loss=loss)
            self._hooks.end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save what was not, and listen no more."""
        if self._hooks is not None:
            self._hooks.save()
            self._hooks.finish()
            self._hooks = None

    def _save(self, trainer: Any) -> None:
        """All ranks: a staged folder, sealed, and renamed by rank 0."""
        name = manifest.name_of(trainer.global_step)
        staged, final = self.folder / f"{manifest.STAGING}{name}", self.folder / name
        with phase("checkpoint"):
            if rank() == 0:
                shutil.rmtree(staged, ignore_errors=True)
                staged.mkdir(parents=True)
            trainer.save_checkpoint(staged / FILE)
            sealed.seal(staged, trainer.global_step, final)
        if rank() == 0:
            for old in manifest.newest_first(self.folder)[self._keep_last :]:
                shutil.rmtree(old, ignore_errors=True)


class _Resumable:
    """A loader whose position Lightning saves with its own."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._position = positions.of(loader, ranks())

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        if self._position.left() == 0:  # Lightning counts, and does not ask for what comes after the last batch
            self._position.next_epoch()
        for batch in self._position.batches():
            self._position.took()  # Lightning fetches a batch when it trains it
            yield batch
        self._position.next_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Where the data is."""
        return self._position.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go there."""
        self._position.restore(state)


def resumable(loader: Iterable[Any]) -> Any:
    """The loader, for ``trainer.fit``, going on in the middle of an epoch after a resume.

    Give it a ``DistributedSampler`` where there are several ranks: Lightning puts none into what is not its own.
    """
    return _Resumable(loader)
