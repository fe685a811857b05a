"""Reduce flight-recorder dumps on their node, so that one place can judge those of many nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import MissingFile
from holdfast.diagnose.dumps import reduced_dumps
from holdfast.diagnose.evidence import SkippedEvidence
from holdfast.diagnose.evidence.gather import gather
from holdfast.diagnose.evidence_set import EvidenceSet, ProgressCallback, ReadEvidence


class ReducedFile(msgspec.Struct, frozen=True):
    """The written file, its ranks and size in bytes, and which evidence was read and skipped."""

    file: str
    ranks: tuple[int, ...]
    bytes: int
    read: tuple[ReadEvidence, ...]
    ignored: tuple[SkippedEvidence, ...]


def reduce_dumps(
    paths: Sequence[str], file: Path, *, watch: ProgressCallback | None = None
) -> ReducedFile:
    """Write the reduced dumps under ``paths`` to ``file``; all other evidence is skipped.

    Raises:
        MissingFile: there is no dump under the paths, or the file cannot be written.
    """
    evidence = EvidenceSet(watch)
    for log in evidence.take_logs(gather(paths)):
        evidence.refuse([SkippedEvidence(log.name, "not a flight-recorder dump")])
    reduced = evidence.reduce_dumps()
    evidence.finish_reading()
    if not reduced.ranks:
        raise MissingFile(
            ", ".join(paths[:4]),
            why="it contains no readable flight-recorder dump",
            next_step=(
                "pass the files whose names begin with the value of TORCH_FR_DUMP_TEMP_FILE "
                "(or TORCH_NCCL_DEBUG_INFO_TEMP_FILE)"
            ),
        )
    data = reduced_dumps.encode(reduced)
    write_atomic(file, data)
    ranks = tuple(sorted(rank.rank for rank in reduced.ranks))
    return ReducedFile(str(file), ranks, len(data), tuple(evidence.read), tuple(evidence.ignored))
