"""Generate the framework configurations of a setup."""

from __future__ import annotations

import msgspec

from holdfast.plan.generate.generated import ConfigFile, UnmappedSetting
from holdfast.plan.generate.migration import ConfigFormat, write_format
from holdfast.plan.generate.recipe import TrainingValues, build_recipe
from holdfast.plan.setup import TrainingSetup


class GeneratedConfig(msgspec.Struct, frozen=True):
    """Files of one format, settings they lack, and warnings about differences."""

    format: ConfigFormat
    files: tuple[ConfigFile, ...]
    unmapped: tuple[UnmappedSetting, ...]
    warnings: tuple[str, ...]


def generate_configs(
    setup: TrainingSetup,
    training: TrainingValues | None = None,
    formats: tuple[ConfigFormat, ...] = tuple(ConfigFormat),
) -> tuple[GeneratedConfig, ...]:
    """Return the files of ``setup`` in each format; nothing is written to disk.

    Raises:
        InvalidValue: the setup and the training values contradict each other.
    """
    recipe = build_recipe(setup, training)
    written = ((format_, write_format(recipe, format_)) for format_ in formats)
    return tuple(
        GeneratedConfig(format_, result.files, result.unmapped, result.warnings)
        for format_, result in written
    )
