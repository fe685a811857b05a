"""The configurations of a setup, as texts."""

from __future__ import annotations

import msgspec

from holdfast.plan.generate.migration import Format, written
from holdfast.plan.generate.recipe import Training, recipe
from holdfast.plan.generate.written import File, Loss
from holdfast.plan.setup import Setup


class Generated(msgspec.Struct, frozen=True):
    """Files of one format, what of the setup they do not say, and what is not quite the same."""

    format: Format
    files: tuple[File, ...]
    lost: tuple[Loss, ...]
    warnings: tuple[str, ...]


def generate(
    setup: Setup, training: Training | None = None, formats: tuple[Format, ...] = tuple(Format)
) -> tuple[Generated, ...]:
    """The files of ``setup`` in each format; nothing is written to disk.

    Raises:
        BadValue: the setup and the training contradict each other.
    """
    found = recipe(setup, training)
    made = ((each, written(found, each)) for each in formats)
    return tuple(Generated(each, result.files, result.losses, result.warnings) for each, result in made)
