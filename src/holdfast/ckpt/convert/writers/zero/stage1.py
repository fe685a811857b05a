"""Writes ZeRO-1, as DeepSpeed's engine loads it; the files are those of ZeRO-2."""

from __future__ import annotations

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.convert.files import TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.zero import stage2


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the tag folder and ``latest`` for ``options.ranks`` ranks. Raises InvalidValue."""
    return stage2.zero_files(contents, options, stage=1)
