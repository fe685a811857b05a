"""Writes a Lightning checkpoint for ``Trainer.fit(ckpt_path=...)``.

Format: lightning/pytorch/trainer/connectors/checkpoint_connector.py (``dump_checkpoint``); loop
counts: lightning/pytorch/loops/progress.py. ``global_step`` comes from the optimizers' progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import state_dicts

#: The version Lightning migrates from; the format has not changed since.
VERSION = "2.2.0"
#: Lightning's own top-level keys, written here.
_OWN = frozenset(
    """
    epoch global_step pytorch-lightning_version state_dict loops callbacks optimizer_states
    lr_schedulers
    """.split()
)


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the file. Other frameworks' values are top-level keys, for ``on_load_checkpoint``."""
    storages = Storages()
    values = state_dicts.nested_values(contents, storages)
    step = _number(contents.step)
    epoch = _number(values.get("epoch"))
    value: dict[str, Any] = {
        "epoch": epoch,
        "global_step": step,
        "pytorch-lightning_version": VERSION,
        "state_dict": state_dicts.model_state_dict(contents, options, storages),
        "loops": _source_loops(contents, values) or _loop_states(step, epoch),
        "callbacks": values.get("callbacks", {})
        if contents.format is CheckpointFormat.LIGHTNING
        else {},
    }
    if (
        options.optimizer
        and (optimizer := state_dicts.optimizer_by_number(contents, storages)) is not None
    ):
        scheduler = state_dicts.scheduler_state(contents)
        value["optimizer_states"] = [optimizer]
        value["lr_schedulers"] = [scheduler] if scheduler is not None else []
    value |= {key: entry for key, entry in values.items() if key not in _OWN}
    return TargetFiles(
        (TargetFile("", (storages.file(value),)),),
        tuple(_describe_losses(contents, options, values)),
    )


def _number(value: object) -> int:
    """Return whole epochs or steps; Hugging Face's Trainer counts fractions of epochs."""
    return int(value) if isinstance(value, (int, float)) else 0


def _describe_losses(
    contents: CheckpointContents, options: ConvertOptions, values: Mapping[str, Any]
) -> Iterator[str]:
    yield from state_dicts.describe_losses(contents, options)
    if contents.optimizer is None or not options.optimizer:
        yield (
            "No optimizer state was written: Trainer.fit refuses the file; Trainer.test and "
            "load_from_checkpoint accept it."
        )
    elif state_dicts.scheduler_state(contents) is None:
        yield "The source has no torch scheduler state: a configured scheduler starts over."
    if not _source_loops(contents, values):
        yield "The source does not record its position in the epoch: Lightning restarts the epoch."


def _source_loops(contents: CheckpointContents, values: Mapping[str, Any]) -> Any:
    """Return the loop states, if Lightning wrote the source."""
    return values.get("loops") if contents.format is CheckpointFormat.LIGHTNING else None


def _loop_states(step: int, epoch: int) -> dict[str, Any]:
    """Return loop states at the start of an epoch, after ``step`` optimizer steps."""
    stepped = _progress_counts(("ready", "completed"), step)
    zeroed = _progress_counts(("ready", "started", "completed"), step)
    batches = ("ready", "started", "processed", "completed")
    evaluating = {
        "state_dict": {},
        "batch_progress": {**_progress_counts(batches, 0), "is_last_batch": False},
    }
    fitting = {
        "state_dict": {},
        "epoch_progress": {
            "total": dict.fromkeys(batches, epoch),
            "current": dict.fromkeys(batches, epoch),
        },
        "epoch_loop.state_dict": {"_batches_that_stepped": step},
        "epoch_loop.batch_progress": {**_progress_counts(batches, step), "is_last_batch": False},
        "epoch_loop.scheduler_progress": stepped,
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {
            "optimizer": {"step": stepped, "zero_grad": zeroed}
        },
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": _progress_counts(
            ("ready", "completed"), 0
        ),
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {
            **_progress_counts(batches, 0),
            "is_last_batch": False,
        },
    }
    predicting = {"state_dict": {}, "batch_progress": _progress_counts(batches, 0)}
    return {
        "fit_loop": fitting,
        "validate_loop": evaluating,
        "test_loop": evaluating,
        "predict_loop": predicting,
    }


def _progress_counts(names: tuple[str, ...], total: int) -> dict[str, Any]:
    """Return counts with ``total`` overall and none in the current epoch."""
    return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, 0)}
