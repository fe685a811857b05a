"""Which formats are written, by which module; and why the others never are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from holdfast.actions.conversion.options import Options
from holdfast.errors import BadValue, UnknownName
from holdfast.facts.checkpoints.contents import Format

_HERE = "holdfast.actions.conversion.writers"
#: Format -> its writer, in the order in which they are listed.
WRITERS: Mapping[Format, str] = {
    Format.SAFETENSORS: f"{_HERE}.safetensors",
    Format.HUGGINGFACE: f"{_HERE}.huggingface",
    Format.TORCH: f"{_HERE}.torch",
    Format.LIGHTNING: f"{_HERE}.lightning",
    Format.ACCELERATE: f"{_HERE}.accelerate",
    Format.DCP: f"{_HERE}.dcp",
    Format.HOLDFAST: f"{_HERE}.holdfast",
    Format.ZERO1: f"{_HERE}.zero.stage1",
    Format.ZERO2: f"{_HERE}.zero.stage2",
    Format.ZERO3: f"{_HERE}.zero.stage3",
    Format.UNIVERSAL: f"{_HERE}.zero.universal",
}
#: Format -> why it is read alone.
NEVER: Mapping[Format, str] = {
    Format.FSDP1_LOCAL: "its flat shards fit the wrapping and world size of one job alone; FSDP1 loads dcp, too",
    Format.FSDP1_SHARDED: "its files hold objects of the process group that saved them; FSDP1 loads dcp, too",
    Format.FSDP2_SHARDED: "its files hold objects of the mesh of ranks that saved them; FSDP2 loads dcp",
    Format.MEGATRON: "its names and splits follow from Megatron's own model; it converts from a Hugging Face folder",
}
#: What people call formats.
_ALSO: Mapping[str, Format] = {
    "hf": Format.HUGGINGFACE, "transformers": Format.HUGGINGFACE, "pt": Format.TORCH, "pytorch": Format.TORCH,
    "ddp": Format.TORCH, "fsdp": Format.DCP, "fsdp1": Format.DCP, "fsdp2": Format.DCP, "distcp": Format.DCP,
    "deepspeed-universal": Format.UNIVERSAL, "zero-1": Format.ZERO1, "zero-2": Format.ZERO2, "zero-3": Format.ZERO3,
    "deepspeed-zero1": Format.ZERO1, "deepspeed-zero2": Format.ZERO2, "deepspeed-zero3": Format.ZERO3,
    "ckpt": Format.LIGHTNING, "megatron-core": Format.MEGATRON, "torch_dist": Format.MEGATRON,
}  # fmt: skip


def named(text: str) -> Format:
    """The format that is meant.

    Raises:
        UnknownName: there is none of that name.
        BadValue: it is never written.
    """
    word = text.strip().casefold()
    found = _ALSO.get(word) or next((each for each in Format if each.value == word), None)
    if found is None:
        raise UnknownName("format", text, [each.value for each in WRITERS])
    if found in NEVER:
        raise BadValue("--to", why=f"{found} is never written: {NEVER[found]}")
    return found


def writer(target: Format, options: Options) -> ModuleType:
    """The module that writes it. Raises BadValue: it has no form of that name."""
    module = import_module(WRITERS[target])
    forms = tuple(getattr(module, "FORMS", ()))
    if options.form and options.form not in forms:
        known = f"{target} has the forms {', '.join(forms)}" if forms else f"{target} has one form alone: leave it out"
        raise BadValue("--form", why=f"{options.form!r} is no form of {target}", next_step=known)
    return module
