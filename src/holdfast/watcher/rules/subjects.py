"""Subjects of findings about ranks."""

from __future__ import annotations

from holdfast.core.findings import Subject
from holdfast.core.rank_table import SourceLine


def rank_subject(rank: int | None, host: str | None, line: SourceLine | None) -> Subject:
    """Return the rank on its host, at a line of its program if known."""
    return Subject(
        rank=rank,
        host=host or None,
        file=line.file if line else None,
        line=line.line if line else None,
    )
