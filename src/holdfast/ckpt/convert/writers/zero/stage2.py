"""Writes ZeRO-2, as DeepSpeed's engine loads it: one model file, one optimizer file per rank.

deepspeed/runtime/zero/stage_1_and_2.py (``state_dict``, ``_load_legacy_checkpoint``). Frozen
parameters are listed for stage 1, too; DeepSpeed itself omits them there, so that zero_to_fp32
loses them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.zero import flat, states
from holdfast.ckpt.convert.writers.zero.groups import (
    MASTER_DTYPE,
    FlatGroup,
    ZeroLayout,
    build_zero_layout,
)

_ADDRESS = pickles.stand_in_class("deepspeed.utils.tensor_fragment", "fragment_address")


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the tag folder and ``latest`` for ``options.ranks`` ranks. Raises InvalidValue."""
    return zero_files(contents, options, stage=2)


def zero_files(contents: CheckpointContents, options: ConvertOptions, stage: int) -> TargetFiles:
    """Return the files of either stage. Raises InvalidValue: no rank, or an invalid tag."""
    layout = build_zero_layout(contents, options)
    form, tag = (
        states.choose_form(layout, contents, options, stage),
        states.tag_name(contents, layout, options),
    )
    target_files = [_model_file(layout, contents, options, form, tag)]
    target_files += [
        _optimizer_file(layout, contents, form, rank, f"{tag}/{form.optimizer_file(rank)}")
        for rank in range(form.ranks)
    ]
    return TargetFiles(
        (*target_files, TargetFile("latest", (tag.encode(),))),
        tuple(states.describe_losses(layout, contents)),
    )


def _model_file(
    layout: ZeroLayout,
    contents: CheckpointContents,
    options: ConvertOptions,
    form: states.ZeroForm,
    tag: str,
) -> TargetFile:
    storages = Storages()
    module = states.module_state_dict(layout, contents, options, storages)
    frozen = {param.name: module[param.name] for param in layout.frozen}
    shapes = [states.param_shapes(group.params) for group in layout.groups]
    value = states.model_states(layout, contents, form, module, frozen, shapes)
    return states.torch_file(f"{tag}/mp_rank_00_model_states.pt", value, storages)


def _optimizer_file(
    layout: ZeroLayout, contents: CheckpointContents, form: states.ZeroForm, rank: int, path: str
) -> TargetFile:
    storages = Storages()
    scaler = states.loss_scaler(contents, form)
    scale = {"loss_scaler": scaler, "dynamic_loss_scale": True} if scaler is not None else {}
    value = {
        "optimizer_state_dict": _state(layout, form, rank, storages) | scale,
        "ds_config": states.zero_config(form),
        "ds_version": states.VERSION,
    }
    return states.torch_file(path, value, storages)


def _state(
    layout: ZeroLayout, form: states.ZeroForm, rank: int, storages: Storages
) -> dict[str, Any]:
    """Return a rank's state; weights have no padding, optimizer states do."""
    groups, ranks = layout.groups, form.ranks
    return {
        "base_optimizer_state": _base_optimizer(layout, ranks, rank, storages),
        "single_partition_of_fp32_groups": [
            _tensor(
                flat.partition_parts(group, ranks, rank, padded=False),
                flat.unpadded_elements(group, ranks, rank),
                storages,
            )
            for group in groups
        ],
        "zero_stage": form.stage,
        "group_paddings": [
            flat.partition_elements(group, ranks) - flat.unpadded_elements(group, ranks, rank)
            for group in groups
        ],
        "partition_count": [ranks for _ in groups],
        "ds_version": states.VERSION,
        "param_slice_mappings": [_slice_mapping(group, ranks, rank) for group in groups],
    }


def _base_optimizer(
    layout: ZeroLayout, ranks: int, rank: int, storages: Storages
) -> dict[str, Any]:
    """Return the state_dict of torch's optimizer, with one flat parameter per group."""
    state = {}
    for at, group in enumerate(layout.groups):
        if group.states:
            state[at] = states.group_numbers(group, storages) | {
                key: _tensor(
                    flat.partition_parts(group, ranks, rank, key, padded=True),
                    flat.partition_elements(group, ranks),
                    storages,
                )
                for key in group.states
            }
    groups = (
        [states.param_group(group, [at]) for at, group in enumerate(layout.groups)]
        if layout.optimizer
        else []
    )
    return {"state": state, "param_groups": groups}


def _tensor(parts: flat.Parts, numel: int, storages: Storages) -> pickles.ReducedCall:
    return pickles.pickled_tensor(storages.storage(parts, MASTER_DTYPE), (numel,))


def _slice_mapping(group: FlatGroup, ranks: int, rank: int) -> OrderedDict[str, Any]:
    """Return where each parameter is in the rank's part; ds_to_universal uses it."""
    return OrderedDict(
        (param.name, pickles.stand_in_instance(_ADDRESS, {"numel": end - begin, "start": offset}))
        for param, begin, end, offset in flat.param_addresses(group, ranks, rank)
    )
