"""A published figure beside what the plan says of it, and a table of many: the shape that the truth programs share."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: More than this many percent off, and a row needs a reason.
FAR_PERCENT = 30.0


@dataclass(frozen=True)
class Row:
    """``got`` for ``expected``, in ``unit``. A yes or no is given as 1.0 or 0.0 with the unit "".

    ``kind`` is what rows are gathered by: "memory, published peak", "time of a step". ``note``: what is assumed.
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
        """Signed, of what was expected; of a yes or no, 0 or 100."""
        if not self.unit:
            return 0.0 if self.got == self.expected else 100.0
        return 100.0 * (self.got / self.expected - 1.0)

    @property
    def far(self) -> bool:
        """It needs a reason."""
        return abs(self.error_percent) > FAR_PERCENT


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Each row as a line."""
    for row in rows:
        figures = f"{row.expected:12.5g} {row.got:12.5g} {row.unit:8.8} {row.error_percent:+8.1f} %"
        yield f"{row.id:5} {row.what:48.48} {figures}  {row.note}".rstrip()


def medians(rows: Sequence[Row]) -> Iterator[str]:
    """By kind and of all: how many rows, the median of their errors without sign, the largest one."""
    kinds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.kind].append(row)
    for kind, these in [*sorted(kinds.items()), ("all", list(rows))]:
        errors = sorted(abs(row.error_percent) for row in these)
        if errors:
            middle = statistics.median(errors)
            yield f"{kind:32} {len(errors):4} rows   median {middle:5.1f} %   most {errors[-1]:6.1f} %"


def unexplained(rows: Iterable[Row], reasons: dict[str, str]) -> list[Row]:
    """Those that are far off and for whose id no reason is given."""
    return [row for row in rows if row.far and row.id not in reasons]


def report(rows: Sequence[Row], reasons: dict[str, str], *, lines: bool) -> tuple[str, bool]:
    """Each row (``lines``), medians, why some are far off; and whether each of those has its reason."""
    said = [*table(rows), ""] if lines else []
    said += medians(rows)
    far = {row.id for row in rows if row.far}
    said += [f"{each}: {why}" for each, why in reasons.items() if each in far]
    missing = unexplained(rows, reasons)
    said += [f"{row.id} is {row.error_percent:+.0f} % off without a reason" for row in missing]
    return "\n".join(said) + "\n", not missing
