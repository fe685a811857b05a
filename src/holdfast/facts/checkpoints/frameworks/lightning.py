"""Checkpoints of Lightning and Fabric: a file of torch.save, or a folder of torch.distributed.checkpoint with meta.pt.

What is in one: lightning/pytorch/trainer/connectors/checkpoint_connector.py (``dump_checkpoint``); how FSDP divides it:
lightning/pytorch/strategies/fsdp.py. Under DeepSpeed Lightning writes DeepSpeed's own form, which ``deepspeed`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format
from holdfast.facts.checkpoints.distributed import dcp
from holdfast.facts.checkpoints.files import torch_legacy
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.torch_files import is_zip
from holdfast.facts.checkpoints.frameworks import torch_save
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.checkpoints.state_dicts.values import Source, values

META, INDEX = "meta.pt", ".metadata"
_VERSION = "pytorch-lightning_version"
#: It is the third key of the dict, and the first record of the archive begins within its first kilobyte.
_FIRST_BYTES = 4096
#: The version whose form was looked at; later ones may differ.
_KNOWN_MAJOR = 2


def recognises(path: Path) -> Format | None:
    """A file that says the version of Lightning at its beginning, or a folder with meta.pt and an index."""
    if path.is_dir():
        return Format.LIGHTNING if (path / META).is_file() and (path / INDEX).is_file() else None
    if not (is_zip(path) or torch_legacy.is_legacy(path)):
        return None
    try:
        with path.open("rb") as stream:
            return Format.LIGHTNING if _VERSION.encode() in stream.read(_FIRST_BYTES) else None
    except OSError:
        return None


def read(path: Path, hints: Hints | None = None) -> Contents:
    """What is in it. ``hints``: see :func:`optimizers.find`. Raises CheckpointUnreadable."""
    if path.is_dir():
        return _sharded(path)
    source = Source(torch_legacy.read(path), "")
    if not isinstance(source.file.value, Mapping):
        raise CheckpointUnreadable(path, why="it is no dict, as Lightning writes one")
    found = torch_save.contents(Format.LIGHTNING, source, source.file.value, hints)
    return _signed(found)


def _sharded(path: Path) -> Contents:
    """The tensors as torch.distributed.checkpoint has them, the rest from meta.pt."""
    found = dcp.read(path)
    gaps = list(found.gaps)
    said = dict(found.values)
    try:
        file = torch_legacy.read(path / META)
        said |= dict(values(Source(file, META), file.value))
    except CheckpointUnreadable as error:
        gaps.append(gap_of(error, META))
    step = said.get("global_step")
    return _signed(
        msgspec.structs.replace(
            found, format=Format.LIGHTNING, values=said, gaps=tuple(gaps),
            step=step if type(step) is int else found.step,
            files={**found.files, META: (path / META).stat().st_size},
        )
    )  # fmt: skip


def _signed(found: Contents) -> Contents:
    """With who wrote it."""
    version = found.values.get(_VERSION)
    if not isinstance(version, str):
        return found
    major = version.partition(".")[0]
    newer = major.isdecimal() and int(major) > _KNOWN_MAJOR
    notes = (
        (*found.notes, f"Lightning {version} wrote it, which is newer than what is known here")
        if newer
        else found.notes
    )
    return msgspec.structs.replace(found, writer=f"lightning {version}", notes=notes)
