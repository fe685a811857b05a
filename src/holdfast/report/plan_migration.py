"""What became of a configuration that was carried from one framework to another, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.report.document import Document, Row, Section


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """``mapped``: key, value, what it becomes and what differs silently; ``lost``: what is left out, and why.

    ``files`` are their paths with what they are for, or, where nothing was written, their names and texts.
    """

    origin: str
    to: str
    mapped: tuple[tuple[str, str, str, str], ...]
    lost: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    written: bool


def document(carried: Carried) -> Document:
    """The sheet; texts of files that were not written come after it, by :func:`texts`."""
    count = len(carried.lost)
    left = f", {count} of them left out" if count else ", none left out"
    sections = (
        Section("becomes", tuple(Row(f"{key} {value} → {now}", mark="•", aside=differs)
                                 for key, value, now, differs in carried.mapped)),
        Section("left out", tuple(Row(f"{what}: {why}", mark="•") for what, why in carried.lost)),
        Section("beware", tuple(Row(text, mark="•") for text in carried.warnings)),
        Section("written", tuple(Row(path, style="path") for path, _ in carried.files) if carried.written else ()),
    )  # fmt: skip
    total = len(carried.mapped) + count
    tone, symbol = ("warning", "⚠") if carried.lost or carried.warnings else ("fine", "✓")
    return Document(symbol, f"{carried.origin} to {carried.to}: {total} settings{left}", tone,
                    tuple(each for each in sections if each.rows))  # fmt: skip


def texts(files: Sequence[tuple[str, str]]) -> str:
    """Files one after the other, under their names."""
    return "\n".join(f"# ---- {name}\n{text.rstrip()}\n" for name, text in files)
