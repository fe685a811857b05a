"""How sure a finding from logs is: the share of such findings that are right.

The confidence of a signal or rule is the base. On the scale of log odds, each circumstance below
adds or subtracts a constant. ``benchmarks/diagnose_corpus.py`` prints the reliability table by
which the constants are set: of the findings with a confidence of 80-90 %, as many should be right.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Two ranks or signals report the same, independently of each other.
CORROBORATED = 0.4
#: A launcher names the same rank as the first that failed.
LAUNCHER_AGREES = 0.4
#: What a rank would have logged decides, and the logs of ranks are missing.
RANKS_MISSING = -0.4
#: Another possible cause may have come first: the logs do not show their order.
ORDER_UNKNOWN = -0.4
#: It rests on lines after the end of its rank, or that steps followed.
LATE = -0.6
#: Bounds: no log is certain, and the best of several explanations is worth a line.
LEAST, MOST = 0.05, 0.97


class Circumstances(NamedTuple):
    """What, beside its own lines, makes a finding likelier or less likely."""

    corroborated: bool = False
    launcher_agrees: bool = False
    ranks_missing: bool = False
    order_unknown: bool = False
    late: bool = False


def adjust_confidence(base: float, known: Circumstances) -> float:
    """Return the confidence, from that of the line or rule."""
    odds = math.log(base / (1 - base)) if base < 1 else math.inf
    odds += sum(
        weight
        for weight, applies in (
            (CORROBORATED, known.corroborated),
            (LAUNCHER_AGREES, known.launcher_agrees),
            (RANKS_MISSING, known.ranks_missing),
            (ORDER_UNKNOWN, known.order_unknown),
            (LATE, known.late),
        )
        if applies
    )
    return round(min(MOST, max(LEAST, 1 / (1 + math.exp(-odds)))), 2)
