"""Carries a configuration over: DeepSpeed's JSON, FSDP2's settings and Accelerate's YAML, each into each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.generate import accelerate, deepspeed, deepspeed_read, fsdp2, torchtitan
from holdfast.plan.generate.fields import Fields
from holdfast.plan.generate.mapping import ROWS, Row, row
from holdfast.plan.generate.recipe import Half, Recipe, Sharded
from holdfast.plan.generate.written import File, Loss, Written


class Format(StrEnum):
    """What configurations are written in. torchtitan's is written alone, not read."""

    DEEPSPEED = "deepspeed"
    FSDP2 = "fsdp2"
    ACCELERATE_FSDP2 = "accelerate-fsdp2"
    ACCELERATE_DEEPSPEED = "accelerate-deepspeed"
    TORCHTITAN = "torchtitan"


class Mapped(msgspec.Struct, frozen=True):
    """A setting that was carried over: where it stood, its value there, where it stands now, what differs silently."""

    key: str
    value: str
    becomes: str
    differs: str = ""


class Migration(msgspec.Struct, frozen=True):
    """What became of a configuration. ``lost`` are settings that are not in ``files``, and why.

    ``warnings`` are about what is there, but not quite the same; ``recipe`` is what was understood.
    """

    origin: Format
    to: Format
    files: tuple[File, ...]
    mapped: tuple[Mapped, ...]
    lost: tuple[Loss, ...]
    warnings: tuple[str, ...]
    recipe: Recipe


_WRITERS = {
    Format.DEEPSPEED: deepspeed.write,
    Format.FSDP2: fsdp2.write,
    Format.ACCELERATE_FSDP2: accelerate.write_fsdp2,
    Format.ACCELERATE_DEEPSPEED: accelerate.write_deepspeed,
    Format.TORCHTITAN: torchtitan.write,
}
_DEEPSPEEDS = (Format.DEEPSPEED, Format.ACCELERATE_DEEPSPEED)


def written(recipe: Recipe, to: Format) -> Written:
    """The files of a recipe in one format."""
    return _WRITERS[to](recipe)


def recognised(config: Mapping[str, Any]) -> Format:
    """In what a configuration is written.

    Raises:
        BadValue: in nothing that is known here.
    """
    if config.get("framework") == "fsdp2" or "fully_shard" in config:
        return Format.FSDP2
    if accelerate.KEYS & set(config):
        return Format.ACCELERATE_DEEPSPEED if config.get("deepspeed_config") else Format.ACCELERATE_FSDP2
    tops = {key.partition(".")[0] for key in ROWS}
    if tops & set(config):
        return Format.DEEPSPEED
    raise BadValue(
        "the configuration", why="it is none of DeepSpeed, FSDP2 (fsdp2.json) or Accelerate",
        next_step=f"DeepSpeed's have keys such as {', '.join(sorted(tops)[:3])} or zero_optimization",
    )  # fmt: skip


def migrate(config: Mapping[str, Any], to: Format, ranks: int = 0) -> Migration:
    """``config`` in another format; ``ranks`` are data-parallel ones, 0 where nobody knows.

    Raises:
        BadValue: it is none that is known here, or values in it cannot be; all of them are named.
    """
    origin = recognised(config)
    if origin is to:
        raise BadValue("the configuration", why=f"it is in the form of {to} already")
    fields = Fields(config)
    readers = {Format.DEEPSPEED: deepspeed_read.read, Format.FSDP2: fsdp2.read}
    found = readers.get(origin, accelerate.read)(fields, ranks)
    fields.check(f"the configuration of {origin}")
    if origin is Format.DEEPSPEED and to is Format.ACCELERATE_DEEPSPEED:
        return _by_file(config, fields, found)
    result = _WRITERS[to](found)
    mapped, lost = _followed(fields, origin, to, _made(found, to))
    warnings = [*result.warnings, *_warnings(found, fields, origin, to)]
    return Migration(origin, to, result.files, mapped, (*lost, *result.losses), tuple(dict.fromkeys(warnings)), found)


def _by_file(config: Mapping[str, Any], fields: Fields, found: Recipe) -> Migration:
    """Accelerate reads DeepSpeed's JSON as it stands, and refuses its own words for the same beside it."""
    result = accelerate.write_by_file(found, config)
    there = tuple(Mapped(key, str(value)[:60], f"{key}, in {deepspeed.NAME}") for key, value in fields.given.items())
    return Migration(Format.DEEPSPEED, Format.ACCELERATE_DEEPSPEED, result.files, there, result.losses, (), found)


def _made(recipe: Recipe, to: Format) -> Mapping[str, Any]:
    """What is written, by dotted key, where that is data whose places the table knows."""
    settings = {Format.FSDP2: fsdp2.settings, Format.DEEPSPEED: deepspeed.settings}.get(to)
    return Fields(settings(recipe)).given if settings else {}


def _followed(
    fields: Fields, origin: Format, to: Format, made: Mapping[str, Any]
) -> tuple[tuple[Mapped, ...], tuple[Loss, ...]]:
    """What became of each key that the configuration has."""
    mapped, lost = [], []
    for key, value in fields.given.items():
        said = str(value)[:60]
        entry = row(key) if origin is Format.DEEPSPEED else None
        if key in fields.idle:
            lost.append(Loss(f"{key}: {said}", fields.idle[key]))
        elif entry is not None and entry.mapped and key in fields.used:
            mapped.append(Mapped(key, said, _with_value(place(entry, to), entry.fsdp2, made), entry.differing(said)))
        elif entry is not None:
            lost.append(Loss(f"{key}: {said}", entry.none or "it is left to the script"))
        elif key in fields.used:
            becomes = _reverse(key, origin, to)
            mapped.append(Mapped(key, said, _with_value(becomes, becomes, made)))
        else:
            lost.append(Loss(f"{key}: {said}", _unknown(key, origin)))
    return tuple(mapped), tuple(lost)


def _with_value(becomes: str, key: str, made: Mapping[str, Any]) -> str:
    return f"{key} = {made[key]}" if key in made else becomes


def place(entry: Row, to: Format) -> str:
    """Where a key of DeepSpeed's stands in another format."""
    if to is Format.TORCHTITAN:
        return torchtitan.NAME
    if to is Format.FSDP2:
        return f"{entry.fsdp2} ({entry.torch})"
    return (entry.accelerate if to is Format.ACCELERATE_FSDP2 else "") or entry.torch


def _reverse(key: str, origin: Format, to: Format) -> str:
    places = {Format.FSDP2: "fsdp2", Format.ACCELERATE_FSDP2: "accelerate", Format.ACCELERATE_DEEPSPEED: "plugin"}
    found = [entry for entry in ROWS.values() if getattr(entry, places[origin]).partition(":")[0] == key]
    if not found:
        return "needs no setting of its own there"
    if to is Format.DEEPSPEED:
        return " and ".join(entry.key for entry in found[:2])
    return (found[0].plugin or "in the script") if to is Format.ACCELERATE_DEEPSPEED else place(found[0], to)


def _unknown(key: str, origin: Format) -> str:
    known = ROWS if origin is Format.DEEPSPEED else accelerate.KNOWN if origin is not Format.FSDP2 else fsdp2.KNOWN
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    near = near or [each for each in known if each.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    asked = f"; did you mean {near[0]}?" if near else ""
    return f"{origin} has no such setting that is known here{asked}"


def _warnings(recipe: Recipe, fields: Fields, origin: Format, to: Format) -> list[str]:
    said = []
    if (origin in _DEEPSPEEDS) is (to in _DEEPSPEEDS):
        return [_autos(fields)] if fields.autos() else []
    if recipe.half is not Half.FP32 and recipe.master and to not in _DEEPSPEEDS:
        said.append(
            "load the model in fp32: DeepSpeed makes an fp32 copy of a model in 16 bits by itself, FSDP2 steps on what "
            "it was given (of weights loaded in bf16, 2.8 % changed in one Adam step at 1e-5, against 92 to 96 %)"
        )
    if not recipe.ranks:
        said.append("the number of ranks is not known: the batch of all ranks has to be the same before and after")
    if recipe.sharded in (Sharded.OPTIMIZER, Sharded.GRADIENTS) and recipe.half is not Half.FP32:
        said.append("ZeRO-1 and 2 keep the 16-bit weights whole all the time, FSDP2 only from forward to backward")
    adds = recipe.accumulation > 1 and origin is Format.DEEPSPEED and recipe.half is not Half.FP32
    if adds and "data_types.grad_accum_dtype" not in fields:
        said.append(f"DeepSpeed added gradients up in {recipe.half}, FSDP2 adds them up in fp32")
    if fields.autos():
        said.append(_autos(fields))
    return said


def _autos(fields: Fields) -> str:
    return f'"auto" is filled in by the Trainer or Accelerate and unknown here: {", ".join(fields.autos())[:300]}'
