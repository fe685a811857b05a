"""ZeRO-1, as DeepSpeed's engine loads it: its files are those of ZeRO-2."""

from __future__ import annotations

from holdfast.actions.conversion.files import Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers.zero import stage2
from holdfast.facts.checkpoints.contents import Contents


def write(contents: Contents, options: Options) -> Written:
    """A folder with the tag's folder and ``latest``, for ``options.ranks`` ranks. Raises BadValue."""
    return stage2.files(contents, options, stage=1)
