"""Print report documents and styled lines.

Importing rich takes 60 ms, so it is imported when the first document is printed, and only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

from holdfast.report.document import ReportDocument


def draw_document(document: ReportDocument, file: TextIO, width: int | None = None) -> None:
    """Write ``document`` to ``file`` in one write; colour and encoding depend on ``file``."""
    from holdfast.report import rich_layout  # noqa: PLC0415 - imports rich, see above

    rich_layout.draw_document(document, file, width)


def draw_lines(lines: Iterable[Sequence[tuple[str, str]]], file: TextIO) -> None:
    """Write lines of (text, style) to a terminal without wrapping; colours only where enabled."""
    from holdfast.report import rich_layout  # noqa: PLC0415 - imports rich, see above

    rich_layout.draw_lines(lines, file)
