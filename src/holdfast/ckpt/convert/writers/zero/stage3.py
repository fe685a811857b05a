"""Writes ZeRO-3, as DeepSpeed's engine loads it: two files per rank, all parameters sharded.

deepspeed/runtime/zero/stage3.py (``_rigid_state_dict``, ``_rigid_load_state_dict``), engine.py
(``load_module_state_dict``: frozen parameters come from ``frozen_param_fragments``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.zero import flat, states
from holdfast.ckpt.convert.writers.zero.groups import MASTER_DTYPE, ZeroLayout, build_zero_layout


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the tag folder and ``latest`` for ``options.ranks`` ranks. Raises InvalidValue."""
    layout = build_zero_layout(contents, options)
    form, tag = (
        states.choose_form(layout, contents, options, stage=3),
        states.tag_name(contents, layout, options),
    )
    target_files = []
    for rank in range(form.ranks):
        target_files.append(
            _model_file(
                layout,
                contents,
                options,
                f"{tag}/zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
                rank,
            )
        )
        target_files.append(
            _optimizer_file(layout, contents, form, rank, f"{tag}/{form.optimizer_file(rank)}")
        )
    losses = [*states.describe_losses(layout, contents), *_scale_lost(contents, form)]
    return TargetFiles((*target_files, TargetFile("latest", (tag.encode(),))), tuple(losses))


def _model_file(
    layout: ZeroLayout, contents: CheckpointContents, options: ConvertOptions, path: str, rank: int
) -> TargetFile:
    storages, form = Storages(), states.choose_form(layout, contents, options, stage=3)
    frozen = {}
    for param in layout.frozen:
        source, dtype = states.model_weight(param, contents, options)
        parts = flat.frozen_parts(source, form.ranks, rank, dtype)
        frozen[param.name] = pickles.pickled_tensor(
            storages.storage(parts, dtype), (flat.shard_elements(param, form.ranks),)
        )
    shapes = [
        states.param_shapes(params)
        for group in layout.groups
        for params in flat.sub_groups(group, form.ranks)
    ]
    module = states.module_state_dict(layout, contents, options, storages, placeholders=form.dtype)
    value = states.model_states(layout, contents, form, module, frozen, shapes)
    return states.torch_file(path, value, storages)


def _optimizer_file(
    layout: ZeroLayout, contents: CheckpointContents, form: states.ZeroForm, rank: int, path: str
) -> TargetFile:
    storages = Storages()
    weights, optimizer = _buffers(layout, form.ranks, rank, storages)
    state = {
        "zero_stage": form.stage,
        "loss_scaler": _loss_scaler(contents, form),
        "dynamic_loss_scale": form.dtype == "float16",
        "overflow": False,
        "partition_count": form.ranks,
        "optimizer_state_dict": optimizer,
        "fp32_flat_groups": weights,
    }
    value = {
        "optimizer_state_dict": state,
        "ds_config": states.zero_config(form),
        "ds_version": states.VERSION,
    }
    return states.torch_file(path, value, storages)


def _buffers(
    layout: ZeroLayout, ranks: int, rank: int, storages: Storages
) -> tuple[list[Any], dict[str, Any]]:
    """Return each sub-group's weights, and the optimizer's state_dict with one parameter each."""
    weights: list[Any] = []
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    for group in layout.groups:
        first = len(weights)
        for params in flat.sub_groups(group, ranks):
            size = sum(flat.shard_elements(param, ranks) for param in params)
            if group.states:
                state[len(weights)] = states.group_numbers(group, storages) | {
                    key: _tensor(flat.stage3_parts(params, ranks, rank, source), size, storages)
                    for key, source in group.states.items()
                }
            weights.append(_tensor(flat.stage3_parts(params, ranks, rank), size, storages))
        groups.append(states.param_group(group, list(range(first, len(weights)))))
    return weights, {"state": state, "param_groups": groups if layout.optimizer else []}


def _tensor(parts: flat.Parts, numel: int, storages: Storages) -> pickles.ReducedCall:
    return pickles.pickled_tensor(storages.storage(parts, MASTER_DTYPE), (numel,))


def _loss_scaler(contents: CheckpointContents, form: states.ZeroForm) -> Any:
    """Return the loss scaler, which stage 3 requires in the checkpoint for every dtype."""
    if form.dtype == "float16":
        return states.loss_scaler(contents, form) or states.dynamic_scaler({})
    return pickles.stand_in_instance(
        pickles.stand_in_class(states.SCALERS, "LossScaler"), {"cur_scale": 1.0, "dynamic": False}
    )


def _scale_lost(contents: CheckpointContents, form: states.ZeroForm) -> Iterator[str]:
    if form.dtype == "float16" and states.loss_scaler(contents, form) is None:
        initial = f"{states.FIRST_SCALE:,.0f}"
        yield f"The source has no loss scale: fp16 starts over at {initial}."
