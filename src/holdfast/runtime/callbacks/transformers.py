"""Hugging Face's Trainer: checkpoints that are proven whole, saved before the scheduler ends the job, NaN that stops.

from holdfast.runtime.callbacks.transformers import HoldfastCallback

guard = HoldfastCallback(every="10m")
trainer = Trainer(..., callbacks=[guard])
trainer.train(resume_from_checkpoint=guard.newest(arguments.output_dir))
"""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.errors import MissingExtra
from holdfast.runtime.callbacks import sealed
from holdfast.runtime.callbacks.driven import Driven
from holdfast.runtime.checkpoint import emergency
from holdfast.runtime.loop.hooks import SPIKE

try:
    _Callback: Any = import_module("transformers").TrainerCallback
except ImportError as error:
    raise MissingExtra("transformers") from error

_log = logging.getLogger("holdfast.loop")


class HoldfastCallback(_Callback):  # type: ignore[misc]
    """Seals each checkpoint of the Trainer, and has it save every so often (``every``: a time) besides its own plan.

    The loss is looked at where the Trainer logs it (``logging_steps``). It filters NaN out of its log by default
    (``logging_nan_inf_filter``), which is switched off here: a NaN is to be seen. The Trainer itself skips, after a
    resume, the batches that were used; that holds for the same number of ranks.
    """

    def __init__(self, every: str | float | None = None, spike: float | None = SPIKE) -> None:
        self._every, self._spike = every, spike
        self._hooks: Driven | None = None
        self._wanted = self._leaving = False

    def newest(self, folder: str | Path) -> str | None:
        """The newest checkpoint that is whole, for ``resume_from_checkpoint``; None where there is none."""
        found = sealed.newest(folder)
        return None if found is None else str(found)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - theirs
        """Begin to count."""
        args.logging_nan_inf_filter = False
        self._hooks = Driven(self._want, self._leave, every=self._every, spike=self._spike)
        self._hooks.start(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Say the step."""
        if self._hooks is not None and self._hooks.step == state.global_step:
            self._hooks.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """Have the Trainer save where it is time, and stop where the scheduler has warned."""
        if self._hooks is not None:
            self._hooks.end()
        control.should_save = control.should_save or self._wanted
        self._wanted = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Look at the loss, which the Trainer gives as the mean over ranks and steps."""
        if self._hooks is not None and isinstance((logs or {}).get("loss"), int | float):
            self._hooks.judge(float(logs["loss"]))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Prove the checkpoint whole, and leave after it where that was asked."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if self._hooks is not None and folder.is_dir():
            sealed.seal(folder, state.global_step)  # noqa: SYNC005 - rank 0 seals it: the folder is shared
            self._hooks.was_saved()
        if self._leaving:
            emergency.leave()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Listen no more."""
        if self._hooks is not None:
            self._hooks.finish()
            self._hooks = None

    def _want(self) -> None:
        self._wanted = True

    def _leave(self) -> None:
        self._leaving = True
