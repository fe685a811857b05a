"""Renders the summary line of ``holdfast ckpt verify``."""

from __future__ import annotations

from typing import TextIO

from holdfast.core.text import format_duration, one_line, pluralize
from holdfast.report.document import ReportDocument
from holdfast.report.evidence_summary import size_text
from holdfast.report.sheet import draw_document


def render_verification(  # noqa: PLR0913 - keyword-only
    path: str,
    *,
    format_name: str,
    files: int,
    size: int,
    tensors: int,
    sums: int,
    elapsed_s: float,
    file: TextIO,
) -> None:
    """Print the amounts: ``zero2, 6 files, 1.2 GiB; checked 148 tensors, ...``."""
    headline = f"{one_line(path)}: {format_name}, {pluralize(files, 'file')}, {size_text(size)}; "
    headline += f"checked {pluralize(tensors, 'tensor')} and {pluralize(sums, 'checksum')} "
    headline += f"in {format_duration(elapsed_s)}"
    draw_document(ReportDocument("", headline, "plain", (), framed=False), file, None)
