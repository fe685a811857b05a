"""Writes a folder for ``Accelerator.load_state``: DDP, one device, or FSDP.

Format: accelerate/checkpointing.py (``save_accelerator_state``), accelerate/utils/fsdp_utils.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import SourceCopy, TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import dcp, safetensors, state_dicts

#: ``ddp``: one device or DDP, which have the same files. ``fsdp``: SHARDED_STATE_DICT, Accelerate's
#: default. ``fsdp-full``: FULL_STATE_DICT, needed to restore FSDP1's optimizer: Accelerate 1.15
#: queries a new FSDP1 optimizer for the states to load from shards, and it has none
#: (utils/fsdp_utils.py).
FORMS = ("ddp", "fsdp", "fsdp-full")
#: Accelerate reads one file of any size.
_ONE_FILE = 1 << 62
_FSDP1 = "Accelerate loads its optimizer state only under FSDP2; for FSDP1 use --form fsdp-full."
_RANDOM = "random_states_"
#: Other files of such a folder, copied from an Accelerate source.
_BESIDE = re.compile(
    r"(random_states_\d+|custom_checkpoint_\d+)\.pkl|(sampler|dl_state_dict)(_\d+)?\.bin|scaler\.pt"
)


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the folder in one of FORMS."""
    files, losses = {"fsdp": _sharded_files, "fsdp-full": _full_files}.get(
        options.form, _ddp_files
    )(contents, options)
    scheduler = state_dicts.scheduler_state(contents)
    if scheduler is not None:
        files = (*files, TargetFile("scheduler.bin", (Storages().file(scheduler),)))
    beside = contents.files.items() if contents.format is CheckpointFormat.ACCELERATE else ()
    copies = tuple(
        TargetFile(path, (SourceCopy(path, 0, size),))
        for path, size in sorted(beside)
        if _BESIDE.fullmatch(path)
    )
    left_out = _describe_losses(contents, options, scheduler, copies)
    return TargetFiles((*files, *copies, *_rank_markers(copies, options)), (*losses, *left_out))


def _rank_markers(copies: tuple[TargetFile, ...], options: ConvertOptions) -> Iterator[TargetFile]:
    """Yield placeholder random-state files, which identify the format and the rank count.

    ``step`` is the number of accumulated batches since the last optimizer step: 0.
    """
    if not any(replica.path.startswith(_RANDOM) for replica in copies):
        for rank in range(max(options.ranks, 1)):
            yield TargetFile(f"{_RANDOM}{rank}.pkl", (Storages().file({"step": 0}),))


def _ddp_files(
    contents: CheckpointContents, options: ConvertOptions
) -> tuple[tuple[TargetFile, ...], tuple[str, ...]]:
    files, losses = safetensors.weight_files(
        contents, msgspec.structs.replace(options, shard_bytes=_ONE_FILE)
    )
    storages = Storages()
    optimizer = state_dicts.optimizer_by_number(contents, storages) if options.optimizer else None
    if optimizer is not None:
        files = (*files, TargetFile("optimizer.bin", (storages.file(optimizer),)))
    return files, losses


def _sharded_files(
    contents: CheckpointContents, options: ConvertOptions
) -> tuple[tuple[TargetFile, ...], tuple[str, ...]]:
    """Return two folders of torch.distributed.checkpoint."""
    ranks = max(options.ranks, 1)
    model, states = (
        dcp.DcpFolderBuilder(ranks, "pytorch_model_fsdp_0/"),
        dcp.DcpFolderBuilder(ranks, "optimizer_0/"),
    )
    dcp.add_model(model, contents, options)
    if contents.optimizer is None or not options.optimizer:
        return model.files(), ()
    dcp.add_optimizer(states, contents, contents.optimizer)
    return (*model.files(), *states.files()), (_FSDP1,)


def _full_files(
    contents: CheckpointContents, options: ConvertOptions
) -> tuple[tuple[TargetFile, ...], tuple[str, ...]]:
    weights, states = Storages(), Storages()
    model = state_dicts.model_state_dict(contents, options, weights)
    files: tuple[TargetFile, ...] = (TargetFile("pytorch_model_fsdp.bin", (weights.file(model),)),)
    optimizer = state_dicts.optimizer_by_name(contents, states) if options.optimizer else None
    if optimizer is not None:
        files = (*files, TargetFile("optimizer.bin", (states.file(optimizer),)))
    return files, ()


def _describe_losses(
    contents: CheckpointContents,
    options: ConvertOptions,
    scheduler: Mapping[str, Any] | None,
    copies: tuple[TargetFile, ...],
) -> Iterator[str]:
    carried = {
        key: value
        for key, value in contents.values.items()
        if not state_dicts.is_scheduler_value(key)
    }
    yield from state_dicts.describe_losses(
        msgspec.structs.replace(contents, values=carried), options, values=False
    )
    if contents.optimizer is None or not options.optimizer:
        yield "No optimizer state was written: load_state fails if an optimizer is prepared."
    if scheduler is None:
        yield "The source has no scheduler state: load_state fails if a scheduler is prepared."
    if not any(value.path.startswith(_RANDOM) for value in copies):
        yield (
            "States of random number generators were not written: load_state continues without "
            "them."
        )
