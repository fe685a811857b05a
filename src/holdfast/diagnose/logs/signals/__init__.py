"""The scan table: all patterns that are searched for in logs.

Each file of the catalogue declares the signals of its cause (``Cause.signals``); ``general.py`` has
those of no single cause, ``launchers.py`` and ``translated.py`` have more lines of both. A pattern
has no look-around and no back-reference, so that Hyperscan can search for all of them at once; its
named groups become the signal's fields (digits become numbers).
"""

from __future__ import annotations

from holdfast.causes import all_causes
from holdfast.core.log_signals import Tier
from holdfast.diagnose.logs.signals import general, launchers, translated
from holdfast.diagnose.logs.signals.endings import ENDINGS, KERNEL
from holdfast.diagnose.logs.signals.row import ScanRow, rows_of_signal

__all__ = ["ROWS", "ScanRow", "extract_fields"]

#: Reports of the end of a process, and problems with files. Where a line has several signals, these
#: come after the general ones: a progress line that mentions one is no sign that training went on.
_LATE_TIERS = frozenset({Tier.OUTSIDE, Tier.CRASH, Tier.SILENCE})
_LATE_FAMILIES = frozenset({"DATA", "CKPT"})


def _scan_table() -> tuple[ScanRow, ...]:
    """Return all rows; signals of one line are numbered in this order."""
    early, late = list[ScanRow](), list[ScanRow]()
    for cause in all_causes():
        for signal in cause.signals:
            is_late = signal.tier in _LATE_TIERS or cause.family in _LATE_FAMILIES
            (late if is_late else early).extend(rows_of_signal(signal))
    return (
        *early,
        *general.ROWS,
        *launchers.ROWS,
        *translated.ROWS,
        *ENDINGS,
        *KERNEL,
        *late,
    )


ROWS = _scan_table()

#: The longest number that torch prints is -1 as 64 bits without a sign.
_MAX_DIGITS = 20


def extract_fields(row: ScanRow, text: str) -> dict[str, str | int | float] | None:
    """Return the fields of ``row`` in ``text``; None without a match, or for too long a number."""
    match = row.compiled.search(text)
    if match is None:
        return None
    fields = {}
    for name, value in match.groupdict().items():
        if value is None:
            continue
        if len(value) > _MAX_DIGITS and value.lstrip("-").isdigit():
            return None
        fields[name] = _number(value)
    return fields


def _number(value: str) -> str | int | float:
    if value.isascii() and value.removeprefix("-").isdigit():
        return int(value)
    is_float = value.replace(".", "", 1).isdecimal() and len(value) < _MAX_DIGITS
    return float(value) if is_float else value
