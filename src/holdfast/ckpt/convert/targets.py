"""Which formats can be written and by which module, and why others cannot."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.state_dicts.sections import OPTIMIZER_WORDS
from holdfast.core.errors import InvalidValue, UnknownName

_WRITERS = "holdfast.ckpt.convert.writers"
#: Format -> writer module, in display order.
WRITERS: Mapping[CheckpointFormat, str] = {
    CheckpointFormat.SAFETENSORS: f"{_WRITERS}.safetensors",
    CheckpointFormat.HUGGINGFACE: f"{_WRITERS}.huggingface",
    CheckpointFormat.TORCH: f"{_WRITERS}.torch",
    CheckpointFormat.LIGHTNING: f"{_WRITERS}.lightning",
    CheckpointFormat.ACCELERATE: f"{_WRITERS}.accelerate",
    CheckpointFormat.DCP: f"{_WRITERS}.dcp",
    CheckpointFormat.HOLDFAST: f"{_WRITERS}.holdfast",
    CheckpointFormat.ZERO1: f"{_WRITERS}.zero.stage1",
    CheckpointFormat.ZERO2: f"{_WRITERS}.zero.stage2",
    CheckpointFormat.ZERO3: f"{_WRITERS}.zero.stage3",
    CheckpointFormat.UNIVERSAL: f"{_WRITERS}.zero.universal",
}
#: Format -> why it can only be read.
UNSUPPORTED_TARGETS: Mapping[CheckpointFormat, str] = {
    CheckpointFormat.FSDP1_LOCAL: "its flat shards need equal wrapping and world size; "
    "use dcp, which FSDP1 loads",
    CheckpointFormat.FSDP1_SHARDED: "it contains objects of one process group; "
    "use dcp, which FSDP1 loads",
    CheckpointFormat.FSDP2_SHARDED: "it contains objects of one device mesh; "
    "use dcp, which FSDP2 loads",
    CheckpointFormat.MEGATRON: "its names and splits depend on Megatron's model; "
    "convert to huggingface",
}
#: Alternative names of formats.
_ALIASES: Mapping[str, CheckpointFormat] = {
    "hf": CheckpointFormat.HUGGINGFACE,
    "transformers": CheckpointFormat.HUGGINGFACE,
    "pt": CheckpointFormat.TORCH,
    "pytorch": CheckpointFormat.TORCH,
    "ddp": CheckpointFormat.TORCH,
    "fsdp": CheckpointFormat.DCP,
    "fsdp1": CheckpointFormat.DCP,
    "fsdp2": CheckpointFormat.DCP,
    "distcp": CheckpointFormat.DCP,
    "torchtitan": CheckpointFormat.DCP,
    "deepspeed-universal": CheckpointFormat.UNIVERSAL,
    "zero-1": CheckpointFormat.ZERO1,
    "zero-2": CheckpointFormat.ZERO2,
    "zero-3": CheckpointFormat.ZERO3,
    "deepspeed-zero1": CheckpointFormat.ZERO1,
    "deepspeed-zero2": CheckpointFormat.ZERO2,
    "deepspeed-zero3": CheckpointFormat.ZERO3,
    "ckpt": CheckpointFormat.LIGHTNING,
    "megatron-core": CheckpointFormat.MEGATRON,
    "torch_dist": CheckpointFormat.MEGATRON,
}


def parse_format(text: str) -> CheckpointFormat:
    """Return the format with this name or alias.

    Raises:
        UnknownName: there is no such format.
        InvalidValue: it can only be read.
    """
    name = text.strip().casefold()
    format_ = _ALIASES.get(name) or next(
        (item for item in CheckpointFormat if item.value == name), None
    )
    if format_ is None:
        raise UnknownName("format", text, [item.value for item in WRITERS])
    if format_ in UNSUPPORTED_TARGETS:
        raise InvalidValue(
            "--to", why=f"{format_} cannot be written: {UNSUPPORTED_TARGETS[format_]}"
        )
    return format_


def default_form(text: str) -> str:
    """Return the form that the name of a format stands for; '' is the format's first."""
    return "torchtitan" if text.strip().casefold() == "torchtitan" else ""


def load_writer(target: CheckpointFormat, options: ConvertOptions) -> ModuleType:
    """Return the writer module. Raises InvalidValue: it has no form of that name."""
    module = import_module(WRITERS[target])
    forms = tuple(getattr(module, "FORMS", ()))
    if options.form and options.form not in forms:
        next_step = (
            f"{target} has the forms {', '.join(forms)}"
            if forms
            else f"{target} has only one form: omit --form"
        )
        raise InvalidValue(
            "--form", why=f"{options.form!r} is not a form of {target}", next_step=next_step
        )
    if options.optimizer_key not in OPTIMIZER_WORDS:
        raise InvalidValue(
            "--optimizer-key",
            why=f"{options.optimizer_key!r} is not a known key",
            next_step=f"use one of {', '.join(sorted(OPTIMIZER_WORDS))}",
        )
    return module
