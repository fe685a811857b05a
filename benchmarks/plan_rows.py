"""Rows that compare a published figure with the prediction, and their table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: Rows with larger errors in percent need a reason.
FAR_PERCENT = 30.0


@dataclass(frozen=True)
class Row:
    """``got`` for ``expected``, in ``unit``. Yes or no is 1.0 or 0.0 with the unit "".

    ``kind`` groups rows: "memory, published peak", "time of a step". ``note``: what is assumed.
    """

    id: str
    what: str
    expected: float
    got: float
    unit: str
    note: str = ""
    kind: str = ""

    @property
    def error_percent(self) -> float:
        """Return the signed error relative to the expected value; for yes or no, 0 or 100."""
        if not self.unit:
            return 0.0 if self.got == self.expected else 100.0
        return 100.0 * (self.got / self.expected - 1.0)

    @property
    def far(self) -> bool:
        """Return whether the row needs a reason."""
        return abs(self.error_percent) > FAR_PERCENT


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield each row as a line."""
    for row in rows:
        figures = f"{row.expected:12.5g} {row.got:12.5g} {row.unit:8.8} {row.error_percent:+8.1f} %"
        yield f"{row.id:5} {row.what:48.48} {figures}  {row.note}".rstrip()


def medians(rows: Sequence[Row]) -> Iterator[str]:
    """Yield count, median and largest absolute error by kind and in total."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    for kind, kind_rows in [*sorted(kinds.items()), ("all", list(rows))]:
        errors = sorted(abs(row.error_percent) for row in kind_rows)
        if errors:
            median = statistics.median(errors)
            yield (
                f"{kind:32} {len(errors):4} rows   median {median:5.1f} %   most "
                f"{errors[-1]:6.1f} %"
            )


def unexplained(rows: Iterable[Row], reasons: dict[str, str]) -> list[Row]:
    """Return rows with large errors without a reason."""
    return [row for row in rows if row.far and row.id not in reasons]


def report(rows: Sequence[Row], reasons: dict[str, str], *, lines: bool) -> tuple[str, bool]:
    """Return the text (with rows if ``lines``), and whether each large error has a reason."""
    lines_out = [*table(rows), ""] if lines else []
    lines_out += medians(rows)
    far = {row.id for row in rows if row.far}
    lines_out += [f"{row_id}: {why}" for row_id, why in reasons.items() if row_id in far]
    missing = unexplained(rows, reasons)
    lines_out += [f"{row.id} is {row.error_percent:+.0f} % off without a reason" for row in missing]
    return "\n".join(lines_out) + "\n", not missing
