"""What ``holdfast ckpt verify`` looked at, in one line for the terminal."""

from __future__ import annotations

from typing import TextIO

from holdfast.report.document import Document
from holdfast.report.evidence import size_text
from holdfast.report.text import duration, one_line, plural


def render_looked(  # noqa: PLR0913 - each number by its name
    path: str, *, called: str, files: int, size: int, tensors: int, sums: int, elapsed_s: float, file: TextIO
) -> None:
    """Print what was read: ``zero2, 6 files, 1.2 GiB: 148 tensors, 312 checksums in 0.4 s``."""
    from holdfast.report.sheet import draw  # noqa: PLC0415 - rich costs 60 ms, and only who prints shall pay it

    headline = f"{one_line(path)}: {called}, {plural(files, 'file')}, {size_text(size)}; "
    headline += f"{plural(tensors, 'tensor')} and {plural(sums, 'checksum')} looked at in {duration(elapsed_s)}"
    draw(Document("", headline, "plain", (), framed=False), file, None)
