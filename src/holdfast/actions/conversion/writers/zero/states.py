"""What DeepSpeed's engine keeps beside the flat buffers: its ``*_model_states.pt``, counts, groups and configuration.

The keys are those of deepspeed/runtime/engine.py (``_common_checkpoint_state``); what a checkpoint need not decide is
left out (clipping, alignment of parameters, the loss scale in stages 1 and 2), so that the engine keeps its own.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.actions.conversion import pickles
from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Part
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import state_dicts
from holdfast.actions.conversion.writers.zero.groups import MASTER, FlatGroup, Laid, step_of
from holdfast.errors import BadValue
from holdfast.facts.checkpoints.contents import Contents, Format, Tensor
from holdfast.facts.checkpoints.state_dicts.values import is_plain

#: The release whose form this is; its loaders ask for one.
VERSION = "0.19.8"
#: Under which the reader of these formats keeps the engine's own counts, and the loss scale.
OWN = "deepspeed"
#: Names that the engine does not hand back as the user's ``client_state``, or that stand for something else.
RESERVED = frozenset({
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "lr_scheduler", "data_sampler", "random_ltd", "skipped_steps", "global_steps",
    "global_samples", "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "ds_config", "ds_version",
    "universal_checkpoint_info", OWN, "num_experts", "ds_autoep_layers", "autoep_layers", "folding",
})  # fmt: skip
#: Version of the universal form, without which ds_to_universal refuses a checkpoint.
UNIVERSAL = 0.2
#: Numbers of an optimizer's state that torch keeps as fp32 tensors without dimensions.
_TENSORS = frozenset({"step", "mu_product", "eta", "mu"})
#: The module of DeepSpeed's loss scalers, its own first scale (``initial_scale_power`` 16), and what it does about
#: overflows (deepspeed/runtime/fp16/loss_scaler.py).
SCALERS = "deepspeed.runtime.fp16.loss_scaler"
FIRST_SCALE = 2.0**16
_DYNAMIC = {"cur_scale": FIRST_SCALE, "cur_iter": 0, "last_overflow_iter": -1, "scale_factor": 2.0,
            "scale_window": 1000, "min_scale": 1, "delayed_shift": 2, "cur_hysteresis": 2,
            "consecutive_hysteresis": False, "raise_error_at_min_scale": True, "dynamic": True}  # fmt: skip
#: A source of these has what its engine had.
_DEEPSPEED = frozenset({Format.ZERO1, Format.ZERO2, Format.ZERO3, Format.UNIVERSAL})
#: Options that all of torch's optimizers have, and no others.
_TORCH = ("foreach", "maximize", "capturable", "differentiable")
#: What tells that the state under ``lr_scheduler`` is one of DeepSpeed's own schedulers.
_OWN_SCHEDULER = "last_batch_iteration"


class Form(msgspec.Struct, frozen=True):
    """ZeRO's stage, the ranks that it divides among, and the dtype that the model computes in."""

    stage: int
    ranks: int
    dtype: str

    def optimizer_file(self, rank: int) -> str:
        """The name of a rank's file of the optimizer; an engine looks for those of its own dtype alone."""
        first = "bf16_zero" if self.dtype == "bfloat16" else "zero"
        return f"{first}_pp_rank_{rank}_mp_rank_00_optim_states.pt"


def weight(tensor: Tensor, contents: Contents, options: Options) -> tuple[Tensor, str]:
    """Where the model's own copy of a weight is taken from, and its dtype there: the 16-bit one, where there is one."""
    half = contents.halves.get(tensor.name)
    if half is not None and options.dtype in {None, half.dtype}:
        return half, half.dtype
    kept = tensor.name in contents.frozen or tensor.name in contents.buffers or tensor.dtype != MASTER
    if options.dtype is None and not kept:
        return tensor, _computed_in(contents)
    return tensor, options.weight_dtype(tensor)


def _computed_in(contents: Contents) -> str:
    """What a model computed in of which there are fp32 weights alone: ZeRO-3 writes no others."""
    if any(path.rpartition("/")[2].startswith("bf16_zero") for path in contents.files):
        return "bfloat16"
    return "float16" if any(key.startswith(f"{OWN}.loss_scaler.") for key in contents.values) else MASTER


def form_of(laid: Laid, contents: Contents, options: Options, stage: int) -> Form:
    """The form that is asked for. Raises BadValue: fewer than one rank."""
    if options.ranks < 1:
        raise BadValue(f"the number of ranks, {options.ranks},", why="ZeRO divides among one or more")
    dtype = next((weight(each, contents, options)[1] for each in laid.trained), MASTER)
    return Form(stage, options.ranks, dtype)


def module(
    laid: Laid, contents: Contents, options: Options, storages: Storages, *, placeholders: str = ""
) -> dict[str, Any]:
    """The module's state_dict; in stage 3, where no rank holds a whole one, empty ``placeholders`` of this dtype."""
    kept = {each.name for each in laid.buffers}
    empty = storages.storage((), placeholders) if placeholders else None
    made: OrderedDict[str, Any] = OrderedDict()
    for name, tensor in contents.tensors.items():
        if empty is not None and name not in kept:
            made[name] = pickles.tensor(empty, (0,))
        else:
            made[name] = storages.tensor(*weight(tensor, contents, options))
    for name, first in contents.ties.items():
        if first in made:
            made[name] = made[first]
    return made


def model_states(
    laid: Laid, contents: Contents, form: Form, module: Mapping[str, Any], frozen: Mapping[str, Any], shapes: list[Any]
) -> dict[str, Any]:
    """What stands in ``*_model_states.pt``; ``frozen`` are the parameters that are not trained, or a rank's parts."""
    found = state_dicts.values(contents)
    own = own_of(found)
    buffers = {each.name for each in laid.buffers}
    second = [name for name, first in contents.ties.items() if first in buffers]
    counts = {key: own[key] for key in ("global_samples", "skipped_steps") if isinstance(own.get(key), int)}
    return {
        "module": module,
        "buffer_names": [*(each.name for each in laid.buffers), *second],
        "optimizer": None,
        "param_shapes": shapes,
        "frozen_param_shapes": shapes_of(laid.frozen),
        "shared_params": {name: first for name, first in contents.ties.items() if first not in buffers},
        "frozen_param_fragments": OrderedDict(frozen),
        "lr_scheduler": scheduler(contents),
        "data_sampler": None,
        "random_ltd": None,
        "skipped_steps": 0,
        "global_steps": step_of(contents, laid),
        **counts,
        "dp_world_size": form.ranks,
        "mp_world_size": 1,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 1},
        "ds_config": config(form),
        "ds_version": VERSION,
        "universal_checkpoint_info": {"universal_checkpoint_version": UNIVERSAL},
        **client_state(contents, found),
    }


def own_of(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of the engine's own a source of these formats had: counts, and ``loss_scaler``."""
    own = found.get(OWN)
    return own if isinstance(own, Mapping) else {}


def loss_scaler(contents: Contents, form: Form) -> Any | None:
    """Where fp16's loss scale stands, which the engine takes from the checkpoint. None: the source does not say."""
    found = own_of(state_dicts.values(contents)).get("loss_scaler")
    if form.dtype != "float16" or not isinstance(found, Mapping):
        return None
    return dynamic_scaler(found)


def dynamic_scaler(found: Mapping[str, Any]) -> Any:
    """One that follows the overflows, from where it was."""
    half = pickles.named("torch", "float16")
    return pickles.instance(pickles.named(SCALERS, "DynamicLossScaler"), {**_DYNAMIC, **found, "dtype": half})


def shapes_of(tensors: Any) -> OrderedDict[str, pickles.Call]:
    """Names and shapes, as torch.Size."""
    return OrderedDict((each.name, pickles.Call(pickles.named("torch", "Size"), (each.shape,))) for each in tensors)


def scheduler(contents: Contents) -> Mapping[str, Any] | None:
    """The state of the learning rate scheduler: of one of torch's, or of DeepSpeed's own."""
    found = state_dicts.values(contents).get("lr_scheduler")
    if isinstance(found, dict) and _OWN_SCHEDULER in found:
        return found
    return state_dicts.scheduler(contents)


def client_state(contents: Contents, found: Mapping[str, Any]) -> dict[str, Any]:
    """Other values, which the engine gives back as ``client_state``."""
    taken = scheduler(contents)
    return {
        key: value
        for key, value in found.items()
        if key not in RESERVED and (taken is None or value not in (taken, [taken]))
    }


def config(form: Form) -> dict[str, Any]:
    """As much of DeepSpeed's configuration as the form of the files decides."""
    made: dict[str, Any] = {"zero_optimization": {"stage": form.stage}}
    short = {"bfloat16": "bf16", "float16": "fp16"}.get(form.dtype)
    return made | ({short: {"enabled": True}} if short else {})


def param_group(group: FlatGroup, numbers: list[int]) -> dict[str, Any]:
    """As torch's ``Optimizer.state_dict()`` has it. DeepSpeed's Adam asks for an option that torch's has not."""
    corrected = {"bias_correction": True} if _is_torch(group) and "betas" in group.options else {}
    return {**corrected, **group.options, "params": numbers}


def numbers(group: FlatGroup, storages: Storages) -> dict[str, Any]:
    """``step``, and what else is no tensor of size."""
    return {key: number(group, key, storages) for key in group.numbers}


def number(group: FlatGroup, key: str, storages: Storages) -> Any:
    """A tensor of its own, as torch's optimizers count in; other optimizers count in plain integers."""
    value = group.numbers[key]
    if key in _TENSORS and _is_torch(group):
        return storages.numbers(struct.pack("<f", value), "float32", ())
    return int(value) if value == int(value) and key == "step" else value


def _is_torch(group: FlatGroup) -> bool:
    """The source's optimizer was one of torch's, as its options tell."""
    return not group.options or any(key in group.options for key in _TORCH)


def losses(laid: Laid, contents: Contents) -> Iterator[str]:
    """What is not in it, and what to know before DeepSpeed loads it."""
    yield from laid.losses
    if not laid.optimizer:
        yield "It has no state of an optimizer: load it with load_checkpoint(load_optimizer_states=False)."
    if scheduler(contents) is None and contents.format not in _DEEPSPEED:
        yield (
            "It has no state of a learning rate scheduler: where the engine has one, load it with "
            "load_checkpoint(load_lr_scheduler_states=False)."
        )
    lost = [key for key, value in contents.values.items() if not is_plain(value)]
    if lost:
        yield f"Not in it, because they are objects of the program that saved them: {', '.join(lost[:5])}."


def folder(contents: Contents, laid: Laid, options: Options, after: str = "") -> str:
    """The tag: the folder that ``latest`` names. Raises BadValue: it is no name of a folder."""
    tag = options.tag or f"global_step{step_of(contents, laid)}{after}"
    if tag in {".", ".."} or any(mark in tag for mark in "/\\\0\n"):
        raise BadValue(f"the tag {tag!r}", why="it has to be the name of one folder", next_step="give another name")
    return tag


def file(path: str, value: Any, storages: Storages) -> File:
    """A file of torch.save."""
    parts: tuple[Part, ...] = (storages.file(value),)
    return File(path, parts)
