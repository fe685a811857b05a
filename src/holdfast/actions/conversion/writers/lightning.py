"""A checkpoint of Lightning, from which ``Trainer.fit(ckpt_path=...)`` goes on.

The form is that of lightning/pytorch/trainer/connectors/checkpoint_connector.py (``dump_checkpoint``); the counts of
the loops are those of lightning/pytorch/loops/progress.py. ``global_step`` is what the optimizers' progress says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import state_dicts
from holdfast.facts.checkpoints.contents import Contents, Format

#: Lightning takes what is newer to its own form by this; the form has not changed since.
VERSION = "2.2.0"
#: What Lightning itself has at the top of a checkpoint, and is written here.
_OWN = frozenset({"epoch", "global_step", "pytorch-lightning_version", "state_dict", "loops", "callbacks",
                  "optimizer_states", "lr_schedulers"})  # fmt: skip


def write(contents: Contents, options: Options) -> Written:
    """The file, which is the target. Values of other frameworks stand at its top, where ``on_load_checkpoint`` sees."""
    storages = Storages()
    found = state_dicts.values(contents, storages)
    step = _number(contents.step)
    epoch = _number(found.get("epoch"))
    value: dict[str, Any] = {
        "epoch": epoch,
        "global_step": step,
        "pytorch-lightning_version": VERSION,
        "state_dict": state_dicts.of_model(contents, options, storages),
        "loops": _own_loops(contents, found) or _loops(step, epoch),
        "callbacks": found.get("callbacks", {}) if contents.format is Format.LIGHTNING else {},
    }
    if options.optimizer and (optimizer := state_dicts.by_number(contents, storages)) is not None:
        scheduler = state_dicts.scheduler(contents)
        value["optimizer_states"] = [optimizer]
        value["lr_schedulers"] = [scheduler] if scheduler is not None else []
    value |= {key: each for key, each in found.items() if key not in _OWN}
    return Written((File("", (storages.file(value),)),), tuple(_losses(contents, options, found)))


def _number(value: object) -> int:
    """Whole epochs or steps; Hugging Face's Trainer counts parts of epochs, too."""
    return int(value) if isinstance(value, (int, float)) else 0


def _losses(contents: Contents, options: Options, found: Mapping[str, Any]) -> Iterator[str]:
    yield from state_dicts.left_out(contents, options)
    if contents.optimizer is None or not options.optimizer:
        yield "It has no state of an optimizer: Trainer.fit refuses it; Trainer.test and load_from_checkpoint take it."
    elif state_dicts.scheduler(contents) is None:
        yield "The source has no state of a learning rate scheduler of torch: one that is configured begins anew."
    if not _own_loops(contents, found):
        yield "The source does not say where in an epoch it was: Lightning begins the epoch anew."


def _own_loops(contents: Contents, found: Mapping[str, Any]) -> Any:
    """Where the loops were, if Lightning wrote the source."""
    return found.get("loops") if contents.format is Format.LIGHTNING else None


def _loops(step: int, epoch: int) -> dict[str, Any]:
    """At the beginning of an epoch, after so many steps of the optimizer."""
    stepped = _counts(("ready", "completed"), step)
    zeroed = _counts(("ready", "started", "completed"), step)
    batches = ("ready", "started", "processed", "completed")
    evaluating = {"state_dict": {}, "batch_progress": {**_counts(batches, 0), "is_last_batch": False}}
    fitting = {
        "state_dict": {},
        "epoch_progress": {"total": dict.fromkeys(batches, epoch), "current": dict.fromkeys(batches, epoch)},
        "epoch_loop.state_dict": {"_batches_that_stepped": step},
        "epoch_loop.batch_progress": {**_counts(batches, step), "is_last_batch": False},
        "epoch_loop.scheduler_progress": stepped,
        "epoch_loop.automatic_optimization.state_dict": {},
        "epoch_loop.automatic_optimization.optim_progress": {"optimizer": {"step": stepped, "zero_grad": zeroed}},
        "epoch_loop.manual_optimization.state_dict": {},
        "epoch_loop.manual_optimization.optim_step_progress": _counts(("ready", "completed"), 0),
        "epoch_loop.val_loop.state_dict": {},
        "epoch_loop.val_loop.batch_progress": {**_counts(batches, 0), "is_last_batch": False},
    }
    predicting = {"state_dict": {}, "batch_progress": _counts(batches, 0)}
    return {"fit_loop": fitting, "validate_loop": evaluating, "test_loop": evaluating, "predict_loop": predicting}


def _counts(names: tuple[str, ...], total: int) -> dict[str, Any]:
    """``total`` of all, none in the present epoch."""
    return {"total": dict.fromkeys(names, total), "current": dict.fromkeys(names, 0)}
