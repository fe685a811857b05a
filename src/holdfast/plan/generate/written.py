"""What a format says of a recipe: files, and what it cannot say."""

from __future__ import annotations

import msgspec


class Loss(msgspec.Struct, frozen=True):
    """A setting that is not carried over: ``what`` it is, in the words of where it comes from, and ``why`` not."""

    what: str
    why: str


class File(msgspec.Struct, frozen=True):
    """A file to be written: its name, what stands in it, and one line that says what it is for."""

    name: str
    text: str
    purpose: str


class Written(msgspec.Struct, frozen=True):
    """What a format says of a recipe, as files, and what it could not."""

    files: tuple[File, ...]
    losses: tuple[Loss, ...] = ()
    #: Said, but not the same in all respects.
    warnings: tuple[str, ...] = ()
