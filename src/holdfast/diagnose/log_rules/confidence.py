"""How sure a finding from logs is: the share of such findings that are right.

The confidence of a signal or rule is the base. On the scale of log odds it is stretched by a line,
and each circumstance below adds or subtracts a constant. ``python -m benchmarks.diagnose_corpus``
prints the reliability table by which the constants were set (docs/benchmarks.md): of the findings
with a confidence of 80-90 %, as many should be right.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: On logs that no rule was written after, authors of signals guess too boldly below 90 %.
SLOPE, SHIFT = 1.05, 0.15
#: No line names the cause: an exception may have one that no signal covers, an end any.
UNNAMED = -1.5
#: Two ranks, or two signals, report the same.
CORROBORATED = 0.5
#: The launcher names the same rank as the first that failed.
LAUNCHER_AGREES = 0.5
#: What other ranks would have logged decides, and their logs are missing.
RANKS_MISSING = -0.5
#: Another possible cause may have come first: the logs do not show their order.
ORDER_UNKNOWN = -0.8
#: It rests on lines after the end of its rank, or steps followed.
LATE = -0.8
#: No log is certain.
LEAST, MOST = 0.05, 0.97


class Circumstances(NamedTuple):
    """What, beside its own lines, makes a finding likelier or less likely."""

    unnamed: bool = False
    corroborated: bool = False
    launcher_agrees: bool = False
    ranks_missing: bool = False
    order_unknown: bool = False
    late: bool = False


#: In the order of the fields of Circumstances.
_WEIGHTS = (
    UNNAMED,
    CORROBORATED,
    LAUNCHER_AGREES,
    RANKS_MISSING,
    ORDER_UNKNOWN,
    LATE,
)


def adjust_confidence(base: float, known: Circumstances) -> float:
    """Return the confidence, from that of the line or rule."""
    odds = SLOPE * math.log(base / (1 - base)) + SHIFT
    odds += sum(weight for weight, applies in zip(_WEIGHTS, known, strict=True) if applies)
    return round(min(MOST, max(LEAST, 1 / (1 + math.exp(-odds)))), 2)
