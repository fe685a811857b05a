"""The table of ``holdfast top`` as plain text, for logs and pipes."""

from __future__ import annotations

from typing import TextIO

from holdfast.core.text import encodable, escape_invisible
from holdfast.serve.live.reader import LiveReading
from holdfast.serve.terminal import rows

MAX_ROWS = 50


def print_table(reading: LiveReading, name: str, out: TextIO) -> None:
    """Print head, rows, groups, waits and findings."""
    lines = [escape_invisible(problem) for problem in reading.problems]
    state = reading.state
    if state is None:
        lines.append(f"{name} has no live state: the leader writes it while the job runs")
    else:
        lines.append(rows.head_line(state))
        if state.notice:
            lines.append(escape_invisible(state.notice))
        found = rows.build_rows(state)
        cells = [rows.COLUMNS, *(row.cells() for row in found[:MAX_ROWS])]
        widths = [max(len(row[at]) for row in cells) for at in range(len(rows.COLUMNS))]
        lines += [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        if len(found) > MAX_ROWS:
            lines.append(f"and {len(found) - MAX_ROWS} more rows")
        lines += [*rows.group_lines(state), *rows.finding_lines(state)]
    encoding = out.encoding or "utf-8"
    out.writelines(encodable(line, encoding) + "\n" for line in lines)
