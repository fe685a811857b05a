"""Marks of texts and paths that a process took from its own clock, host or number."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.lint.abstract_domain.values import (
    MAX_OBJECTS,
    PROCESS_KINDS,
    UNKNOWN_OBJECT,
    Taint,
    TaintSource,
    Value,
)


class ProcessStamp(msgspec.Struct, frozen=True):
    """What a process took from its own clock, host or number, as attributes drop that taint.

    ``is_text``: it is text, such as a name of a folder.
    """

    source: TaintSource
    is_text: bool = True


def stamps_of(values: Iterable[Value]) -> tuple[ProcessStamp, ...]:
    """Return the stamp of a text or path that is made from these values; ``()`` without one."""
    for value in values:
        for obj in value.objects:
            if isinstance(obj, ProcessStamp):
                return (obj if obj.is_text else ProcessStamp(obj.source),)
        for source in value.content:
            if source.kind in PROCESS_KINDS and not value.agreed:
                return (ProcessStamp(source),)
    return ()


def process_sources(value: Value) -> Taint:
    """Return why each process has another path: its own clock, host or number."""
    named = tuple(obj.source for obj in value.objects_of(ProcessStamp) if obj.is_text)
    return named + tuple(source for source in value.content if source.kind in PROCESS_KINDS)


def with_stamp(value: Value) -> Value:
    """Return a value for an attribute, marked if its process has it from its own clock or host."""
    if not value.content or any(isinstance(obj, ProcessStamp) for obj in value.objects):
        return value
    own = [source for source in value.content if source.kind in PROCESS_KINDS]
    if not own:
        return value
    objects = value.objects or (UNKNOWN_OBJECT,) if value.absent else value.objects
    stamp = ProcessStamp(own[0], is_text=False)
    return msgspec.structs.replace(value, objects=(*objects[: MAX_OBJECTS - 1], stamp))


def without_stamps(value: Value) -> Value:
    """Return a value on which ranks have agreed."""
    kept = tuple(obj for obj in value.objects if not isinstance(obj, ProcessStamp))
    same = len(kept) == len(value.objects)
    return value if same else msgspec.structs.replace(value, objects=kept)
