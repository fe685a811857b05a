"""Builds DeepSpeed's ``*_model_states.pt``: step counts, groups, configuration, client state.

Keys: deepspeed/runtime/engine.py (``_common_checkpoint_state``). What a checkpoint need not decide
is omitted (clipping, parameter alignment, the loss scale in stages 1 and 2), so that the engine
keeps its own.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat, Tensor
from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import Part, TargetFile
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import state_dicts
from holdfast.ckpt.convert.writers.zero.groups import (
    MASTER_DTYPE,
    FlatGroup,
    ZeroLayout,
    completed_steps,
)
from holdfast.ckpt.formats.deepspeed.model import DEEPSPEED_KEYS
from holdfast.ckpt.state_dicts.optimizers import SCALAR_STATES
from holdfast.ckpt.state_dicts.values import is_plain
from holdfast.core.errors import InvalidValue

#: The DeepSpeed release with this format; its loaders require a version.
VERSION = "0.19.8"
#: Key under which the reader stores the engine's counts and loss scale.
ENGINE_KEY = "deepspeed"
#: Keys that the engine does not return as ``client_state``, or that mean something else.
RESERVED = DEEPSPEED_KEYS | {"lr_scheduler", "data_sampler", "random_ltd", ENGINE_KEY}
#: Version of the universal format, required by ds_to_universal.
UNIVERSAL = 0.2
#: The module of DeepSpeed's loss scalers, its initial scale (``initial_scale_power`` 16), and its
#: overflow handling (deepspeed/runtime/fp16/loss_scaler.py).
SCALERS = "deepspeed.runtime.fp16.loss_scaler"
FIRST_SCALE = 2.0**16
_DYNAMIC = {
    "cur_scale": FIRST_SCALE,
    "cur_iter": 0,
    "last_overflow_iter": -1,
    "scale_factor": 2.0,
    "scale_window": 1000,
    "min_scale": 1,
    "delayed_shift": 2,
    "cur_hysteresis": 2,
    "consecutive_hysteresis": False,
    "raise_error_at_min_scale": True,
    "dynamic": True,
}
#: Source formats that contain the engine's state.
_DEEPSPEED = frozenset(
    {
        CheckpointFormat.ZERO1,
        CheckpointFormat.ZERO2,
        CheckpointFormat.ZERO3,
        CheckpointFormat.UNIVERSAL,
    }
)
#: Options common to all torch optimizers, and only those.
_TORCH = ("foreach", "maximize", "capturable", "differentiable")
#: The key that identifies the state of a DeepSpeed scheduler.
_OWN_SCHEDULER = "last_batch_iteration"


class ZeroForm(msgspec.Struct, frozen=True):
    """ZeRO stage, number of ranks, and the model's compute dtype."""

    stage: int
    ranks: int
    dtype: str

    def optimizer_file(self, rank: int) -> str:
        """Return a rank's optimizer file name; engines only look for their dtype's."""
        first = "bf16_zero" if self.dtype == "bfloat16" else "zero"
        return f"{first}_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def model_weight(
    tensor: Tensor, contents: CheckpointContents, options: ConvertOptions
) -> tuple[Tensor, str]:
    """Return the tensor and dtype of the model's own weight: the 16-bit copy if there is one."""
    half = contents.halves.get(tensor.name)
    if half is not None and options.dtype in {None, half.dtype}:
        return half, half.dtype
    keeps_dtype = (
        tensor.name in contents.frozen
        or tensor.name in contents.buffers
        or tensor.dtype != MASTER_DTYPE
    )
    if options.dtype is None and not keeps_dtype:
        return tensor, _compute_dtype(contents)
    return tensor, options.weight_dtype(tensor)


def _compute_dtype(contents: CheckpointContents) -> str:
    """Return the compute dtype for fp32-only weights, the only ones ZeRO-3 writes."""
    if any(path.rpartition("/")[2].startswith("bf16_zero") for path in contents.files):
        return "bfloat16"
    return (
        "float16"
        if any(key.startswith(f"{ENGINE_KEY}.loss_scaler.") for key in contents.values)
        else MASTER_DTYPE
    )


def choose_form(
    layout: ZeroLayout, contents: CheckpointContents, options: ConvertOptions, stage: int
) -> ZeroForm:
    """Return the requested form. Raises InvalidValue: fewer than one rank."""
    if options.ranks < 1:
        raise InvalidValue(f"the number of ranks, {options.ranks},", why="ZeRO needs at least one")
    dtype = next(
        (model_weight(param, contents, options)[1] for param in layout.trained), MASTER_DTYPE
    )
    return ZeroForm(stage, options.ranks, dtype)


def module_state_dict(
    layout: ZeroLayout,
    contents: CheckpointContents,
    options: ConvertOptions,
    storages: Storages,
    *,
    placeholders: str = "",
) -> dict[str, Any]:
    """Return the module's state_dict; for stage 3 with empty ``placeholders`` of a dtype."""
    buffers = {buffer.name for buffer in layout.buffers}
    empty = storages.storage((), placeholders) if placeholders else None
    state_dict: OrderedDict[str, Any] = OrderedDict()
    for name, tensor in contents.tensors.items():
        if empty is not None and name not in buffers:
            state_dict[name] = pickles.pickled_tensor(empty, (0,))
        else:
            state_dict[name] = storages.tensor(*model_weight(tensor, contents, options))
    for name, first in contents.ties.items():
        if first in state_dict:
            state_dict[name] = state_dict[first]
    return state_dict


def model_states(
    layout: ZeroLayout,
    contents: CheckpointContents,
    form: ZeroForm,
    module: Mapping[str, Any],
    frozen: Mapping[str, Any],
    shapes: list[Any],
) -> dict[str, Any]:
    """Return ``*_model_states.pt``; ``frozen``: untrained parameters, or a rank's parts."""
    values = state_dicts.nested_values(contents)
    engine = engine_values(values)
    buffers = {tensor.name for tensor in layout.buffers}
    aliases = [name for name, first in contents.ties.items() if first in buffers]
    counts = {
        key: engine[key]
        for key in ("global_samples", "skipped_steps")
        if isinstance(engine.get(key), int)
    }
    return {
        "module": module,
        "buffer_names": [*(tensor.name for tensor in layout.buffers), *aliases],
        "optimizer": None,
        "param_shapes": shapes,
        "frozen_param_shapes": param_shapes(layout.frozen),
        "shared_params": {
            name: first for name, first in contents.ties.items() if first not in buffers
        },
        "frozen_param_fragments": OrderedDict(frozen),
        "lr_scheduler": scheduler_state(contents),
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": completed_steps(contents, layout),
        **counts,
        "dp_world_size": form.ranks,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_config": zero_config(form),
        "ds_version": VERSION,
        "universal_checkpoint_info": {"universal_checkpoint_version": UNIVERSAL},
        "step": completed_steps(contents, layout),
        **client_state(contents, values),
    }


def engine_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the counts and ``loss_scaler`` of the engine, if the source has them."""
    engine = values.get(ENGINE_KEY)
    return engine if isinstance(engine, Mapping) else {}


def loss_scaler(contents: CheckpointContents, form: ZeroForm) -> Any | None:
    """Return the state of fp16's loss scaler; None: not recorded in the source."""
    scaler_state = engine_values(state_dicts.nested_values(contents)).get("loss_scaler")
    if form.dtype != "float16" or not isinstance(scaler_state, Mapping):
        return None
    return dynamic_scaler(scaler_state)


def dynamic_scaler(scaler_state: Mapping[str, Any]) -> Any:
    """Return a dynamic loss scaler with the given state."""
    half = pickles.stand_in_class("torch", "float16")
    return pickles.stand_in_instance(
        pickles.stand_in_class(SCALERS, "DynamicLossScaler"),
        {**_DYNAMIC, **scaler_state, "dtype": half},
    )


def param_shapes(tensors: Any) -> OrderedDict[str, pickles.ReducedCall]:
    """Return names and shapes, as torch.Size."""
    return OrderedDict(
        (tensor.name, pickles.ReducedCall(pickles.stand_in_class("torch", "Size"), (tensor.shape,)))
        for tensor in tensors
    )


def scheduler_state(contents: CheckpointContents) -> Mapping[str, Any] | None:
    """Return the state of a torch or DeepSpeed scheduler."""
    state = state_dicts.nested_values(contents).get("lr_scheduler")
    if isinstance(state, dict) and _OWN_SCHEDULER in state:
        return state
    return state_dicts.scheduler_state(contents)


def client_state(contents: CheckpointContents, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return other values, which the engine returns as ``client_state``."""
    scheduler = scheduler_state(contents)
    return {
        key: value
        for key, value in values.items()
        if key not in RESERVED and (scheduler is None or value not in (scheduler, [scheduler]))
    }


def zero_config(form: ZeroForm) -> dict[str, Any]:
    """Return the part of DeepSpeed's configuration that the files determine."""
    config: dict[str, Any] = {"zero_optimization": {"stage": form.stage}}
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(form.dtype)
    return config | ({short: {"enabled": True}} if short else {})


def param_group(group: FlatGroup, numbers: list[int]) -> dict[str, Any]:
    """Return a group of torch's state_dict, plus an option that DeepSpeed's Adam requires."""
    corrected = (
        {"bias_correction": True} if _is_torch_optimizer(group) and "betas" in group.options else {}
    )
    return {**corrected, **group.options, "params": numbers}


def group_numbers(group: FlatGroup, storages: Storages) -> dict[str, Any]:
    """Return ``step`` and other scalar states."""
    return {key: group_number(group, key, storages) for key in group.numbers}


def group_number(group: FlatGroup, key: str, storages: Storages) -> Any:
    """Return a scalar tensor as torch's optimizers keep, or a plain number for others."""
    value = group.numbers[key]
    if key in SCALAR_STATES and _is_torch_optimizer(group):
        return storages.numbers(struct.pack("<f", value), "float32", ())
    return int(value) if value == int(value) and key == "step" else value


def _is_torch_optimizer(group: FlatGroup) -> bool:
    """Return whether the options are those of a torch optimizer."""
    return not group.options or any(key in group.options for key in _TORCH)


def describe_losses(layout: ZeroLayout, contents: CheckpointContents) -> Iterator[str]:
    """Yield what was omitted, and what to consider before loading it with DeepSpeed."""
    yield from layout.losses
    if not layout.optimizer:
        yield (
            "No optimizer state was written: load with "
            "load_checkpoint(load_optimizer_states=False)."
        )
    if scheduler_state(contents) is None and contents.format not in _DEEPSPEED:
        yield (
            "No scheduler state was written: if the engine has a scheduler, load with "
            "load_checkpoint(load_lr_scheduler_states=False)."
        )
    lost = [key for key, value in contents.values.items() if not is_plain(value)]
    if lost:
        yield (
            "Not written, because they are objects of the program that saved them: "
            f"{', '.join(lost[:5])}."
        )


def tag_name(
    contents: CheckpointContents, layout: ZeroLayout, options: ConvertOptions, after: str = ""
) -> str:
    """Return the tag, a folder name stored in ``latest``. Raises InvalidValue: invalid name."""
    tag = options.tag or f"global_step{completed_steps(contents, layout)}{after}"
    if tag in {".", ".."} or any(mark in tag for mark in "/\\\0\n"):
        raise InvalidValue(
            f"the tag {tag!r}", why="it is not a valid folder name", next_step="use another tag"
        )
    return tag


def torch_file(path: str, value: Any, storages: Storages) -> TargetFile:
    """Return a torch.save file."""
    parts: tuple[Part, ...] = (storages.file(value),)
    return TargetFile(path, parts)
