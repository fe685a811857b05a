"""Flight-recorder dumps made small where they lie, so that those of many nodes can be judged in one place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.actions.heap import Heap, ReadPiece, Watch
from holdfast.errors import MissingFile
from holdfast.facts import reduced_dumps
from holdfast.facts.evidence import Ignored
from holdfast.facts.evidence.gather import gather
from holdfast.report.files import write_whole


class ReducedFile(msgspec.Struct, frozen=True):
    """What was written: the ranks in it and its size in bytes; and what of the evidence was read and ignored."""

    file: str
    ranks: tuple[int, ...]
    bytes: int
    read: tuple[ReadPiece, ...]
    ignored: tuple[Ignored, ...]


def reduce(paths: Sequence[str], file: Path, *, watch: Watch | None = None) -> ReducedFile:
    """Write what a judgement needs of the dumps under ``paths`` to ``file``; all other evidence is ignored.

    Raises:
        MissingFile: there is no dump under the paths, or the file cannot be written.
    """
    heap = Heap(watch)
    for log in heap.sort(gather(paths)):
        heap.ignored.append(Ignored(log.name, "it is no dump of the flight recorder"))
        heap.refused.add(log.name)
    reduced = heap.reduced()
    heap.settle_sizes()
    if not reduced.ranks:
        raise MissingFile(
            ", ".join(paths[:4]), why="there is no dump of the flight recorder in it that can be read",
            next_step="name the files that TORCH_FR_DUMP_TEMP_FILE (or TORCH_NCCL_DEBUG_INFO_TEMP_FILE) begins",
        )  # fmt: skip
    data = reduced_dumps.encode(reduced)
    write_whole(file, data)
    read = tuple(item for item in heap.read if item.name not in heap.refused)
    ranks = tuple(sorted(rank.rank for rank in reduced.ranks))
    return ReducedFile(str(file), ranks, len(data), read, tuple(heap.ignored))
