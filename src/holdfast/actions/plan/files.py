"""Configurations of a planned run, written to a folder; and those of one framework carried over to another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.actions.plan.groups import made
from holdfast.actions.plan.wish import Run, Wish
from holdfast.errors import BadValue, MissingFile
from holdfast.plan import heterogeneous
from holdfast.plan.batches import Allotment
from holdfast.plan.generate.fields import parse
from holdfast.plan.generate.files import generate
from holdfast.plan.generate.migration import Format, Migration, migrate
from holdfast.plan.generate.recipe import Half, Training
from holdfast.plan.generate.written import File
from holdfast.plan.groups_code import mesh_code
from holdfast.plan.models import KNOWN
from holdfast.report.files import write_whole

#: A configuration is some kilobytes.
_MOST_BYTES = 1 << 18
_GROUPS = "process_groups.py"


class Kept(msgspec.Struct, frozen=True):
    """A file that was written, and what it is for."""

    path: str
    purpose: str


class Files(msgspec.Struct, frozen=True):
    """What was written; ``unsaid``: what of the plan a file does not say, and why."""

    kept: tuple[Kept, ...]
    unsaid: tuple[str, ...]


def write(wish: Wish, run: Run, folder: Path, dealt: Allotment | None = None) -> Files:
    """Every framework's files of a run, and a program that makes its process groups; of unequal GPUs their shares.

    Raises:
        MissingFile: the folder cannot be made, or has such files already.
        BadValue: GPUs of several kinds, and no batch that is dealt out over them.
    """
    if len(wish.parts) > 1:
        if dealt is None:
            raise BadValue("--write", why="nothing is dealt out over GPUs of several kinds",
                           next_step="say the batch: --batch 64")  # fmt: skip
        shares = heterogeneous.text(dealt, wish.half)
        file = File("heterogeneous.yaml", shares, "each rank's shares, for holdfast.read_heterogeneous")
        return Files(keep([file], folder), ("no framework's own file says unequal shares",))
    half = {"fp16": Half.FP16, "fp32": Half.FP32}.get(wish.half, Half.BF16)
    known = wish.model.main.name if wish.model.towers and wish.model.main.name in KNOWN else ""
    found = generate(run.setup, Training(half=half, model=known))
    files = [file for each in found for file in each.files]
    groups = File(_GROUPS, mesh_code(made(run)), "its make_groups makes all process groups, on every rank alike")
    unsaid = [f"{each.format}: {loss.what}: {loss.why}" for each in found for loss in each.lost]
    unsaid += [f"{each.format}: {text}" for each in found for text in each.warnings]
    return Files(keep((*files, groups), folder), tuple(unsaid))


def keep(files: Iterable[File], folder: Path) -> tuple[Kept, ...]:
    """The files, in the folder, which is made; none that is there is replaced.

    Raises:
        MissingFile: the folder cannot be made, or has one of them.
    """
    every = list(files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingFile(folder, why=(error.strerror or str(error)).lower(), next_step="give another folder") from None
    for file in every:
        if (folder / file.name).exists():
            raise MissingFile(folder / file.name, why="it is there already, and is not replaced",
                              next_step="give another folder, or move it away")  # fmt: skip
    for file in every:
        write_whole(folder / file.name, file.text.encode())
    return tuple(Kept(str(folder / file.name), file.purpose) for file in every)


# ---- from one to another


def migrated(path: Path, to: str, ranks: int = 0) -> Migration:
    """The configuration in that file, in another form: ``fsdp2``, ``deepspeed``, ``accelerate-fsdp2``, …

    Raises:
        MissingFile, BadValue: there is no such file, or it is no configuration that is known here.
    """
    return migrate(_read(path), Format(to), ranks)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise MissingFile(path, why=(error.strerror or str(error)).lower(), next_step="give a DeepSpeed JSON, an "
                          "fsdp2.json or Accelerate's YAML") from None  # fmt: skip
    if len(content) > _MOST_BYTES:
        raise BadValue(path, why=f"it is no configuration: it has more than {_MOST_BYTES:,} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise BadValue(path, why="it is no text") from None
    return parse(text, str(path))
