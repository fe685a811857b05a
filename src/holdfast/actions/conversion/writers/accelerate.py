"""A folder from which ``Accelerator.load_state`` goes on: of a run under DDP or on one device, or under FSDP.

The form is that of accelerate/checkpointing.py (``save_accelerator_state``) and of accelerate/utils/fsdp_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import Copy, File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import dcp, safetensors, state_dicts
from holdfast.facts.checkpoints.contents import Contents, Format

#: ``ddp``: one device or DDP, which Accelerate keeps alike. ``fsdp``: FSDP with SHARDED_STATE_DICT, its default;
#: ``fsdp-full``: with FULL_STATE_DICT, the one from which FSDP1 gets its optimizer's state, too: Accelerate 1.15 asks a
#: new optimizer of FSDP1 which states to load from shards, and it has none (utils/fsdp_utils.py).
FORMS = ("ddp", "fsdp", "fsdp-full")
#: Accelerate takes one file, however large.
_ONE_FILE = 1 << 62
_FSDP1 = "Accelerate loads the optimizer's state from it under FSDP2 alone: FSDP1 takes it from the form fsdp-full."
_RANDOM = "random_states_"
#: What else lies in such a folder, and is carried over from one to another.
_BESIDE = re.compile(r"(random_states_\d+|custom_checkpoint_\d+)\.pkl|(sampler|dl_state_dict)(_\d+)?\.bin|scaler\.pt")


def write(contents: Contents, options: Options) -> Written:
    """The folder, in one of FORMS."""
    files, losses = {"fsdp": _sharded, "fsdp-full": _full}.get(options.form, _ddp)(contents, options)
    scheduler = state_dicts.scheduler(contents)
    if scheduler is not None:
        files = (*files, File("scheduler.bin", (Storages().file(scheduler),)))
    beside = contents.files.items() if contents.format is Format.ACCELERATE else ()
    copies = tuple(File(path, (Copy(path, 0, size),)) for path, size in sorted(beside) if _BESIDE.fullmatch(path))
    left_out = _left_out(contents, options, scheduler, copies)
    return Written((*files, *copies, *_marks(copies, options)), (*losses, *left_out))


def _marks(copies: tuple[File, ...], options: Options) -> Iterator[File]:
    """What tells such a folder from others, and how many ranks it is of: a file for each, without random states.

    ``step`` is how many batches were accumulated: none since the last step of the optimizer.
    """
    if not any(each.path.startswith(_RANDOM) for each in copies):
        for rank in range(max(options.ranks, 1)):
            yield File(f"{_RANDOM}{rank}.pkl", (Storages().file({"step": 0}),))


def _ddp(contents: Contents, options: Options) -> tuple[tuple[File, ...], tuple[str, ...]]:
    files, losses = safetensors.weights(contents, msgspec.structs.replace(options, shard_bytes=_ONE_FILE))
    storages = Storages()
    optimizer = state_dicts.by_number(contents, storages) if options.optimizer else None
    if optimizer is not None:
        files = (*files, File("optimizer.bin", (storages.file(optimizer),)))
    return files, losses


def _sharded(contents: Contents, options: Options) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """Two folders of torch.distributed.checkpoint."""
    ranks = max(options.ranks, 1)
    model, states = dcp.Folder(ranks, "pytorch_model_fsdp_0/"), dcp.Folder(ranks, "optimizer_0/")
    dcp.put_model(model, contents, options)
    if contents.optimizer is None or not options.optimizer:
        return model.files(), ()
    dcp.put_optimizer(states, contents, contents.optimizer)
    return (*model.files(), *states.files()), (_FSDP1,)


def _full(contents: Contents, options: Options) -> tuple[tuple[File, ...], tuple[str, ...]]:
    weights, states = Storages(), Storages()
    model = state_dicts.of_model(contents, options, weights)
    files: tuple[File, ...] = (File("pytorch_model_fsdp.bin", (weights.file(model),)),)
    optimizer = state_dicts.by_name(contents, states) if options.optimizer else None
    if optimizer is not None:
        files = (*files, File("optimizer.bin", (states.file(optimizer),)))
    return files, ()


def _left_out(
    contents: Contents, options: Options, scheduler: Mapping[str, Any] | None, copies: tuple[File, ...]
) -> Iterator[str]:
    carried = {key: each for key, each in contents.values.items() if not state_dicts.is_of_scheduler(key)}
    yield from state_dicts.left_out(msgspec.structs.replace(contents, values=carried), options, values=False)
    if contents.optimizer is None or not options.optimizer:
        yield "Accelerator.load_state asks for an optimizer's state where one is prepared, and it has none."
    if scheduler is None:
        yield "The source has no state of a learning rate scheduler: load_state fails where a scheduler is prepared."
    if not any(each.path.startswith(_RANDOM) for each in copies):
        yield "The states of the random number generators are not in it: load_state goes on without them."
