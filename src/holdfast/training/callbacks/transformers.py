"""Hugging Face's Trainer: verified checkpoints, saves before preemption, NaN detection.

from holdfast.training.callbacks.transformers import HoldfastCallback

guard = HoldfastCallback(every="10m")
trainer = Trainer(..., callbacks=[guard])
trainer.train(resume_from_checkpoint=guard.newest(arguments.output_dir))
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from holdfast.core.errors import MissingExtra
from holdfast.training.callbacks import verified_checkpoints
from holdfast.training.callbacks.framework_hooks import FrameworkHooks
from holdfast.training.checkpoint import emergency
from holdfast.training.loop.hooks import DEFAULT_SPIKE

try:
    _Callback: Any = import_module("transformers").TrainerCallback
except ImportError as error:
    raise MissingExtra("transformers") from error


class HoldfastCallback(_Callback):  # type: ignore[misc]
    """Seal each checkpoint of the Trainer, and save every ``every`` besides its own schedule.

    The loss is checked when the Trainer logs it (``logging_steps``). Its default filter of NaN
    (``logging_nan_inf_filter``) is disabled, so that NaN is detected. After a resume, the Trainer
    itself skips consumed batches, for an unchanged number of ranks.
    """

    def __init__(
        self, every: str | float | None = None, spike: float | None = DEFAULT_SPIKE
    ) -> None:
        self._every, self._spike = every, spike
        self._hooks: FrameworkHooks | None = None
        self._save_requested = self._exit_requested = False

    def newest(self, folder: str | Path) -> str | None:
        """Return the newest valid checkpoint for ``resume_from_checkpoint``, or None."""
        folder_found = verified_checkpoints.newest(folder)
        return None if folder_found is None else str(folder_found)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - Trainer's signature
        """Start counting steps."""
        args.logging_nan_inf_filter = False
        folder = Path(args.output_dir).absolute()
        self._hooks = FrameworkHooks(
            folder, self._request_save, self._request_exit, every=self._every, spike=self._spike
        )
        self._hooks.start(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Begin the step."""
        if self._hooks is not None and self._hooks.step == state.global_step:
            self._hooks.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ARG002
        """Make the Trainer save when due, and stop after a preemption signal."""
        if self._hooks is not None:
            self._hooks.end()
        control.should_save = control.should_save or self._save_requested
        self._save_requested = False
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
        """Check the loss, which the Trainer logs as the mean over ranks and steps."""
        if self._hooks is not None and isinstance((logs or {}).get("loss"), int | float):
            self._hooks.check_loss(float(logs["loss"]))

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Seal the checkpoint, and exit after it if the job was preempted."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if self._hooks is not None and folder.is_dir():
            verified_checkpoints.seal(folder, state.global_step)  # noqa: SYNC005 - rank 0 seals it: the folder is shared
            self._hooks.mark_saved()
        if self._exit_requested:
            emergency.exit_rank()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Stop listening for signals."""
        if self._hooks is not None:
            self._hooks.finish()
            self._hooks = None

    def _request_save(self) -> None:
        self._save_requested = True

    def _request_exit(self) -> None:
        self._exit_requested = True
