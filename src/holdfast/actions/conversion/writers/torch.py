"""One file of torch.save, as programs of plain torch and DDP keep their state: ``model``, ``optimizer``, ``step``.

``torch.load(path)`` takes it with ``weights_only=True``: it names tensors and containers alone.
"""

from __future__ import annotations

from typing import Any

from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import state_dicts
from holdfast.facts.checkpoints.contents import Contents

#: How the optimizer's state is kept: as ``Optimizer.load_state_dict`` takes it, or as ``set_optimizer_state_dict`` of
#: torch.distributed.checkpoint does; or the state_dict of the model alone, without anything around it.
FORMS = ("by-number", "by-name", "state-dict")


def write(contents: Contents, options: Options) -> Written:
    """The file, which is the target."""
    storages = Storages()
    model = state_dicts.of_model(contents, options, storages)
    if options.form == "state-dict":
        losses = state_dicts.left_out(contents, options, optimizer=False, values=False)
        return Written((File("", (storages.file(model),)),), tuple(losses))
    value: dict[str, Any] = {"model": model}
    if options.optimizer:
        made = state_dicts.by_name if options.form == "by-name" else state_dicts.by_number
        if (optimizer := made(contents, storages)) is not None:
            value["optimizer"] = optimizer
    if isinstance(contents.step, int):
        value["step"] = contents.step
    if (scheduler := state_dicts.scheduler(contents)) is not None:
        value["scheduler"] = scheduler
    for key, each in state_dicts.values(contents, storages).items():
        if scheduler is None or not state_dicts.is_of_scheduler(key):
            value.setdefault(key, each)
    return Written((File("", (storages.file(value),)),), tuple(state_dicts.left_out(contents, options)))
