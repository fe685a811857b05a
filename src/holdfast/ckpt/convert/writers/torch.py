"""Writes one torch.save file with ``model``, ``optimizer`` and ``step``, as for plain torch.

``torch.load(path, weights_only=True)`` loads it: it contains only tensors and containers.
"""

from __future__ import annotations

from typing import Any

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import state_dicts

#: Form of the optimizer state: for ``Optimizer.load_state_dict``, or for
#: ``set_optimizer_state_dict`` of torch.distributed.checkpoint; or only the model's state_dict, not
#: nested in another dict.
FORMS = ("by-number", "by-name", "state-dict")


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the file, which is the target."""
    storages = Storages()
    model = state_dicts.model_state_dict(contents, options, storages)
    if options.form == "state-dict":
        losses = state_dicts.describe_losses(contents, options, optimizer=False, values=False)
        return TargetFiles((TargetFile("", (storages.file(model),)),), tuple(losses))
    value: dict[str, Any] = {"model": model}
    if options.optimizer:
        build_optimizer = (
            state_dicts.optimizer_by_name
            if options.form == "by-name"
            else state_dicts.optimizer_by_number
        )
        if (optimizer := build_optimizer(contents, storages)) is not None:
            value["optimizer"] = optimizer
    if isinstance(contents.step, int):
        value["step"] = contents.step
    if (scheduler := state_dicts.scheduler_state(contents)) is not None:
        value["scheduler"] = scheduler
    for key, entry in state_dicts.nested_values(contents, storages).items():
        if scheduler is None or not state_dicts.is_scheduler_value(key):
            value.setdefault(key, entry)
    return TargetFiles(
        (TargetFile("", (storages.file(value),)),),
        tuple(state_dicts.describe_losses(contents, options)),
    )
