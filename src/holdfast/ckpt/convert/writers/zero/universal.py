"""Writes DeepSpeed's universal format, which ``load_universal`` reads at any stage and size.

ds_to_universal writes two variants, one for stages 1 and 2 (a dict with the shaped parameter) and
one for stage 3 (a flat tensor), and each fails in the other's engine. Both loaders accept the dict
(deepspeed/checkpoint/universal_checkpoint.py and runtime/zero/stage3.py,
``load_hp_checkpoint_state``), so this writes both: parameters as dicts, optimizer groups in both
locations, and the model file under both names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, Tensor
from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.state_dicts import list_names
from holdfast.ckpt.convert.writers.zero import flat, states
from holdfast.ckpt.convert.writers.zero.groups import (
    MASTER_DTYPE,
    FlatGroup,
    ZeroLayout,
    build_zero_layout,
)
from holdfast.core.errors import InvalidValue

#: The stage recorded in the files; universal loaders ignore it.
_STAGE = 2
_MODELS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the tag folder and ``latest_universal``. Raises InvalidValue: invalid tag or name."""
    layout = build_zero_layout(contents, options)
    tag = states.tag_name(contents, layout, options, after="_universal")
    target_files = [_model_file(layout, contents, options, f"{tag}/{name}") for name in _MODELS]
    for group in layout.groups:
        for param in group.params:
            target_files += _param_files(group, param, f"{tag}/zero/{_check_name(param.name)}")
    target_files.append(_groups_file(layout, f"{tag}/zero/optimizer_state.pt"))
    return TargetFiles(
        (*target_files, TargetFile("latest_universal", (tag.encode(),))),
        tuple(_describe_losses(layout, contents)),
    )


def _model_file(
    layout: ZeroLayout, contents: CheckpointContents, options: ConvertOptions, path: str
) -> TargetFile:
    """Return buffers and frozen parameters in full; trained ones are separate files."""
    storages = Storages()
    form = states.choose_form(layout, contents, msgspec.structs.replace(options, ranks=1), _STAGE)
    module = states.module_state_dict(
        layout, contents, options, storages, placeholders=MASTER_DTYPE
    )
    frozen = {
        param.name: storages.tensor(*states.model_weight(param, contents, options))
        for param in layout.frozen
    }
    module.update(frozen)
    shapes = [states.param_shapes(group.params) for group in layout.groups]
    return states.torch_file(
        path, states.model_states(layout, contents, form, module, frozen, shapes), storages
    )


def _param_files(group: FlatGroup, param: Tensor, folder: str) -> Iterator[TargetFile]:
    """Yield weights, each state, and the step; a group's parameters have the same states."""
    yield _tensor_file(f"{folder}/fp32.pt", param, param)
    for key, source in group.states.items():
        yield _tensor_file(f"{folder}/{key}.pt", param, source.get(param.name))
    if group.states and "step" in group.numbers:
        storages = Storages()
        yield states.torch_file(
            f"{folder}/step.pt", states.group_number(group, "step", storages), storages
        )


def _tensor_file(path: str, param: Tensor, source: Tensor | None) -> TargetFile:
    """Return one tensor; scalars get one dimension, because loaders of stages 1, 2 slice it."""
    storages = Storages()
    parts = flat.stage3_parts(
        (param,), 1, 0, None if source is param else {} if source is None else {param.name: source}
    )
    tensor = pickles.pickled_tensor(storages.storage(parts, MASTER_DTYPE), param.shape or (1,))
    return states.torch_file(path, {"cat_dim": 0, "param": tensor}, storages)


def _groups_file(layout: ZeroLayout, path: str) -> TargetFile:
    """Return the groups: ``param_groups`` for stages 1 and 2, else ``optimizer_state_dict``.

    Stage 3 applies the options of its first group to every group. Options that differ between
    groups are omitted there, so that the engine keeps its configured values.
    """
    storages = Storages()
    groups = (
        [states.param_group(group, [at]) for at, group in enumerate(layout.groups)]
        if layout.optimizer
        else []
    )
    differing = _differing(layout)
    common = [
        {key: value for key, value in group.items() if key not in differing} for group in groups
    ]
    value: dict[str, Any] = {
        "zero_stage": _STAGE,
        "partition_count": [1 for _ in layout.groups],
        "ds_version": states.VERSION,
        "param_groups": groups,
        "optimizer_state_dict": {
            "state": {
                at: states.group_numbers(group, storages)
                for at, group in enumerate(layout.groups)
                if group.states
            },
            "param_groups": common,
        },
    }
    return states.torch_file(path, value, storages)


def _differing(layout: ZeroLayout) -> list[str]:
    """Return options that are not the same in all groups."""
    first = layout.groups[0].options if layout.groups else {}
    keys = dict.fromkeys(key for group in layout.groups for key in group.options)
    return [
        key
        for key in keys
        if any(key not in g.options or g.options[key] != first.get(key) for g in layout.groups)
    ]


def _check_name(name: str) -> str:
    """Return the name, which becomes a path. Raises InvalidValue: it leaves the folder."""
    if not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise InvalidValue(
            f"the parameter's name {name!r}",
            why="the universal format uses it as a folder name",
            next_step="rename it with --map",
        )
    return name


def _describe_losses(layout: ZeroLayout, contents: CheckpointContents) -> Iterator[str]:
    yield from states.describe_losses(layout, contents)
    others = [tensor.name for tensor in (*layout.frozen, *layout.buffers)]
    if others:
        yield (
            "DeepSpeed does not load frozen parameters and buffers from a universal checkpoint; "
            f"they are in {_MODELS[0]} under 'module': {list_names(others)}."
        )
    if differing := _differing(layout):
        yield (
            "DeepSpeed's ZeRO-3 applies the same options to all optimizer groups when it loads a "
            "universal checkpoint; options that differ keep their configured values: "
            f"{list_names(differing)}."
        )
    if sum("step" in group.numbers for group in layout.groups) > 1:
        yield (
            "DeepSpeed's ZeRO-3 sums the steps of all groups when it loads a universal checkpoint "
            "of a torch optimizer, which makes its next steps smaller; convert to zero3 for the "
            "target number of ranks instead."
        )
