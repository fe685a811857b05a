"""Convert configurations between DeepSpeed's JSON, FSDP2's settings and Accelerate's YAML."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.generate import accelerate, deepspeed, deepspeed_reader, fsdp2, torchtitan
from holdfast.plan.generate.fields import ConfigReader
from holdfast.plan.generate.generated import ConfigFile, UnmappedSetting, WrittenConfig
from holdfast.plan.generate.mapping import SETTING_MAPPINGS, SettingMapping, find_mapping
from holdfast.plan.generate.recipe import ComputeDtype, Recipe, ShardedStates


class ConfigFormat(StrEnum):
    """Configuration formats. torchtitan's is only written, not read."""

    DEEPSPEED = "deepspeed"
    FSDP2 = "fsdp2"
    ACCELERATE_FSDP2 = "accelerate-fsdp2"
    ACCELERATE_DEEPSPEED = "accelerate-deepspeed"
    TORCHTITAN = "torchtitan"


class MappedSetting(
    msgspec.Struct, frozen=True, rename={"target": "becomes", "difference": "differs"}
):
    """A converted setting: key, value, new location, and silent difference."""

    key: str
    value: str
    target: str
    difference: str = ""


class Migration(msgspec.Struct, frozen=True, rename={"unmapped": "lost"}):
    """A converted configuration. ``unmapped``: settings missing in ``files``, and the reasons.

    ``warnings``: differences of converted settings; ``recipe``: the configuration as understood.
    """

    origin: ConfigFormat
    to: ConfigFormat
    files: tuple[ConfigFile, ...]
    mapped: tuple[MappedSetting, ...]
    unmapped: tuple[UnmappedSetting, ...]
    warnings: tuple[str, ...]
    recipe: Recipe


_WRITERS = {
    ConfigFormat.DEEPSPEED: deepspeed.write_deepspeed_json,
    ConfigFormat.FSDP2: fsdp2.write_fsdp2_files,
    ConfigFormat.ACCELERATE_FSDP2: accelerate.write_fsdp2,
    ConfigFormat.ACCELERATE_DEEPSPEED: accelerate.write_deepspeed,
    ConfigFormat.TORCHTITAN: torchtitan.write_torchtitan,
}
_DEEPSPEED_FORMATS = (ConfigFormat.DEEPSPEED, ConfigFormat.ACCELERATE_DEEPSPEED)


def write_format(recipe: Recipe, to: ConfigFormat) -> WrittenConfig:
    """Write a recipe in one format."""
    return _WRITERS[to](recipe)


def detect_format(config: Mapping[str, Any]) -> ConfigFormat:
    """Detect the format of a configuration.

    Raises:
        InvalidValue: an unknown format.
    """
    if config.get("framework") == "fsdp2" or "fully_shard" in config:
        return ConfigFormat.FSDP2
    if accelerate.KEYS & set(config):
        return (
            ConfigFormat.ACCELERATE_DEEPSPEED
            if config.get("deepspeed_config")
            else ConfigFormat.ACCELERATE_FSDP2
        )
    top_level_keys = {key.partition(".")[0] for key in SETTING_MAPPINGS}
    if top_level_keys & set(config):
        return ConfigFormat.DEEPSPEED
    raise InvalidValue(
        "the configuration",
        why="not a DeepSpeed, FSDP2 (fsdp2.json) or Accelerate configuration",
        next_step=f"a DeepSpeed file has keys such as {', '.join(sorted(top_level_keys)[:3])} "
        "or zero_optimization",
    )


def migrate_settings(
    config: Mapping[str, Any], to: ConfigFormat, ranks: int = 0, *, of_script: bool = False
) -> Migration:
    """Convert ``config`` to another format; ``ranks`` are the data-parallel ones, 0 if unknown.

    ``of_script``: it was read from a script, so that FSDP2's own format is another one, too.

    Raises:
        InvalidValue: an unknown format, or invalid values; the message names all of them.
    """
    origin = detect_format(config)
    if origin is to and not of_script:
        raise InvalidValue("the configuration", why=f"already in the format {to}")
    reader = ConfigReader(config)
    readers = {
        ConfigFormat.DEEPSPEED: deepspeed_reader.read_deepspeed,
        ConfigFormat.FSDP2: fsdp2.read_fsdp2,
    }
    recipe = readers.get(origin, accelerate.read_accelerate)(reader, ranks)
    reader.raise_problems(f"the configuration of {origin}")
    if origin is ConfigFormat.DEEPSPEED and to is ConfigFormat.ACCELERATE_DEEPSPEED:
        return _point_to_file(config, reader, recipe)
    result = _WRITERS[to](recipe)
    mapped, unmapped = _trace_settings(reader, origin, to, _written_values(recipe, to))
    warnings = [*result.warnings, *_warnings(recipe, reader, origin, to)]
    return Migration(
        origin,
        to,
        result.files,
        mapped,
        (*unmapped, *result.unmapped),
        tuple(dict.fromkeys(warnings)),
        recipe,
    )


def _point_to_file(config: Mapping[str, Any], reader: ConfigReader, recipe: Recipe) -> Migration:
    """Point Accelerate to DeepSpeed's unchanged JSON; it rejects duplicate settings beside it."""
    result = accelerate.write_pointing_file(recipe, config)
    mapped = tuple(
        MappedSetting(key, str(value)[:60], f"{key}, in {deepspeed.NAME}")
        for key, value in reader.values.items()
    )
    return Migration(
        ConfigFormat.DEEPSPEED,
        ConfigFormat.ACCELERATE_DEEPSPEED,
        result.files,
        mapped,
        result.unmapped,
        (),
        recipe,
    )


def _written_values(recipe: Recipe, to: ConfigFormat) -> Mapping[str, Any]:
    """Return the written values by dotted key, if the format is covered by the mapping."""
    settings = {
        ConfigFormat.FSDP2: fsdp2.fsdp2_settings,
        ConfigFormat.DEEPSPEED: deepspeed.deepspeed_settings,
    }.get(to)
    return ConfigReader(settings(recipe)).values if settings else {}


def _trace_settings(
    reader: ConfigReader, origin: ConfigFormat, to: ConfigFormat, written: Mapping[str, Any]
) -> tuple[tuple[MappedSetting, ...], tuple[UnmappedSetting, ...]]:
    """Return what became of each key of the configuration."""
    mapped, unmapped = [], []
    for key, value in reader.values.items():
        text = str(value)[:60]
        mapping = find_mapping(key) if origin is ConfigFormat.DEEPSPEED else None
        if key in reader.ignored:
            unmapped.append(UnmappedSetting(f"{key}: {text}", reader.ignored[key]))
        elif mapping is not None and mapping.is_mapped and key in reader.used:
            mapped.append(
                MappedSetting(
                    key,
                    text,
                    _with_value(target_location(mapping, to), mapping.fsdp2, written),
                    mapping.difference_for(text),
                )
            )
        elif mapping is not None:
            unmapped.append(
                UnmappedSetting(f"{key}: {text}", mapping.reason or "left to the script")
            )
        elif key in reader.used:
            target = _reverse_location(key, origin, to)
            mapped.append(MappedSetting(key, text, _with_value(target, target, written)))
        else:
            unmapped.append(UnmappedSetting(f"{key}: {text}", _explain_unknown(key, origin)))
    return tuple(mapped), tuple(unmapped)


def _with_value(target: str, key: str, written: Mapping[str, Any]) -> str:
    return f"{key} = {written[key]}" if key in written else target


def target_location(mapping: SettingMapping, to: ConfigFormat) -> str:
    """Return the location of a DeepSpeed key in another format."""
    if to is ConfigFormat.TORCHTITAN:
        return torchtitan.NAME
    if to is ConfigFormat.FSDP2:
        return f"{mapping.fsdp2} ({mapping.torch})"
    return (mapping.accelerate if to is ConfigFormat.ACCELERATE_FSDP2 else "") or mapping.torch


def _reverse_location(key: str, origin: ConfigFormat, to: ConfigFormat) -> str:
    fields = {
        ConfigFormat.FSDP2: "fsdp2",
        ConfigFormat.ACCELERATE_FSDP2: "accelerate",
        ConfigFormat.ACCELERATE_DEEPSPEED: "accelerate_deepspeed",
    }
    mappings = [
        mapping
        for mapping in SETTING_MAPPINGS.values()
        if getattr(mapping, fields[origin]).partition(":")[0] == key
    ]
    if not mappings:
        return "needs no separate setting"
    if to is ConfigFormat.DEEPSPEED:
        return " and ".join(mapping.key for mapping in mappings[:2])
    return (
        (mappings[0].accelerate_deepspeed or "in the script")
        if to is ConfigFormat.ACCELERATE_DEEPSPEED
        else target_location(mappings[0], to)
    )


def _explain_unknown(key: str, origin: ConfigFormat) -> str:
    known = (
        SETTING_MAPPINGS
        if origin is ConfigFormat.DEEPSPEED
        else accelerate.KNOWN
        if origin is not ConfigFormat.FSDP2
        else fsdp2.KNOWN
    )
    matches = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    matches = (
        matches or [each for each in known if each.rpartition(".")[2] == key.rpartition(".")[2]][:1]
    )
    hint = f"; did you mean {matches[0]}?" if matches else ""
    return f"unknown setting of {origin}{hint}"


def _warnings(
    recipe: Recipe, reader: ConfigReader, origin: ConfigFormat, to: ConfigFormat
) -> list[str]:
    warnings = []
    if (origin in _DEEPSPEED_FORMATS) is (to in _DEEPSPEED_FORMATS):
        return [_auto_warning(reader)] if reader.auto_keys() else []
    if (
        recipe.compute_dtype is not ComputeDtype.FP32
        and recipe.master
        and to not in _DEEPSPEED_FORMATS
    ):
        warnings.append(
            "load the model in fp32: DeepSpeed creates an fp32 copy of a 16-bit model, FSDP2 "
            "updates the weights as loaded (of weights loaded in bf16, 2.8 % changed in one Adam "
            "step at 1e-5, against 92 to 96 %)"
        )
    if not recipe.ranks:
        warnings.append(
            "the number of ranks is unknown: make sure that the global batch stays the same"
        )
    if (
        recipe.sharded_states in (ShardedStates.OPTIMIZER, ShardedStates.GRADIENTS)
        and recipe.compute_dtype is not ComputeDtype.FP32
    ):
        warnings.append(
            "ZeRO-1 and 2 always keep unsharded 16-bit weights, FSDP2 only from forward to backward"
        )
    accumulates = (
        recipe.accumulation > 1
        and origin is ConfigFormat.DEEPSPEED
        and recipe.compute_dtype is not ComputeDtype.FP32
    )
    if accumulates and "data_types.grad_accum_dtype" not in reader:
        warnings.append(f"DeepSpeed accumulates gradients in {recipe.compute_dtype}, FSDP2 in fp32")
    if reader.auto_keys():
        warnings.append(_auto_warning(reader))
    return warnings


def _auto_warning(reader: ConfigReader) -> str:
    return (
        '"auto" is replaced by the Trainer or Accelerate and unknown here: '
        f"{', '.join(reader.auto_keys())[:300]}"
    )
