"""Reads Lightning and Fabric checkpoints: a torch.save file, or a DCP folder with meta.pt.

Content: lightning/pytorch/trainer/connectors/checkpoint_connector.py (``dump_checkpoint``); FSDP:
lightning/pytorch/strategies/fsdp.py. With DeepSpeed, Lightning writes DeepSpeed's own format, which
``deepspeed`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.files import torch_legacy
from holdfast.ckpt.files.torch_files import is_zip
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.distributed import dcp
from holdfast.ckpt.formats.frameworks import torch_save
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.state_dicts.values import TorchSource, flatten_values
from holdfast.core.errors import CheckpointUnreadable

META, INDEX = "meta.pt", ".metadata"
_VERSION = "pytorch-lightning_version"
#: The version is the third key of the dict, in the archive's first record.
_FIRST_BYTES = 4096
#: The newest major version this reader was developed against.
_KNOWN_MAJOR = 2


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize a file with Lightning's version near its start, or a folder with meta.pt."""
    if path.is_dir():
        return (
            CheckpointFormat.LIGHTNING
            if (path / META).is_file() and (path / INDEX).is_file()
            else None
        )
    if not (is_zip(path) or torch_legacy.is_legacy(path)):
        return None
    try:
        with path.open("rb") as stream:
            return (
                CheckpointFormat.LIGHTNING
                if _VERSION.encode() in stream.read(_FIRST_BYTES)
                else None
            )
    except OSError:
        return None


def read_contents(path: Path, hints: MappingHints | None = None) -> CheckpointContents:
    """Return the contents; ``hints``: see :func:`optimizers.merge_optimizers`.

    Raises:
        CheckpointUnreadable: it cannot be read.
    """
    if path.is_dir():
        return _read_sharded(path)
    source = TorchSource(torch_legacy.read_torch_file(path), "")
    if not isinstance(source.file.value, Mapping):
        raise CheckpointUnreadable(path, why="it is not a dict, as Lightning writes")
    contents = torch_save.build_contents(
        CheckpointFormat.LIGHTNING, source, source.file.value, hints
    )
    return _add_writer(contents)


def _read_sharded(path: Path) -> CheckpointContents:
    """Read the tensors from torch.distributed.checkpoint files, the rest from meta.pt."""
    contents = dcp.read_contents(path)
    problems = list(contents.problems)
    extra_values = dict(contents.values)
    try:
        file = torch_legacy.read_torch_file(path / META)
        extra_values |= dict(flatten_values(TorchSource(file, META), file.value))
    except CheckpointUnreadable as error:
        problems.append(problem_of(error, META))
    step = extra_values.get("global_step")
    return _add_writer(
        msgspec.structs.replace(
            contents,
            format=CheckpointFormat.LIGHTNING,
            values=extra_values,
            problems=tuple(problems),
            step=step if type(step) is int else contents.step,
            files={**contents.files, META: (path / META).stat().st_size},
        )
    )


def _add_writer(contents: CheckpointContents) -> CheckpointContents:
    """Set the writer's version."""
    version = contents.values.get(_VERSION)
    if not isinstance(version, str):
        return contents
    major = version.partition(".")[0]
    newer = major.isdecimal() and int(major) > _KNOWN_MAJOR
    notes = (
        (
            *contents.notes,
            f"written by Lightning {version}, newer than supported ({_KNOWN_MAJOR}.x)",
        )
        if newer
        else contents.notes
    )
    return msgspec.structs.replace(contents, writer=f"lightning {version}", notes=notes)
