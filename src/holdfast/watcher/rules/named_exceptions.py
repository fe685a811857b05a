"""Finds the cause that the message of an exception states, from the log lines of the catalogue.

Only signals that name their cause directly count: one that other lines must confirm does not.
"""

from __future__ import annotations

import re
from functools import cache

from holdfast.causes import all_causes
from holdfast.causes.checkpoint.checkpoint_folder_unusable import CHECKPOINT_FOLDER_UNUSABLE
from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.core.findings import Cause
from holdfast.core.log_signals import AnchoredPattern, Tier
from holdfast.core.rank_table import RaisedException

#: Characters of a message that are searched.
_MAX_TEXT = 2000
_MIN_CONFIDENCE = 0.7
#: Writers of files report a full disk in their own words (torch: the position does not match).
_NO_SPACE = re.compile(
    r"No space left on device|Disk quota exceeded|\[Errno (28|122)\]|StorageFull|os error 28"
    r"|inline_container\.cc:\d+\] \. unexpected pos|PytorchStreamWriter failed writing"
    r"|basic_ios::clear: iostream error"
)

#: torch's client of the rendezvous store, at the start of the job.
_NO_STORE = re.compile(r"client socket has (?:timed out|failed)")


def cause_of_message(raised: RaisedException) -> Cause | None:
    """Return the cause that the exception states; None if its message states none."""
    text = f"{raised.type}: {raised.text[:_MAX_TEXT]}"
    for pattern, cause in _patterns():
        if pattern.search(text):
            return cause
    if _NO_STORE.search(text):
        return MASTER_UNREACHABLE
    return CHECKPOINT_FOLDER_UNUSABLE if _NO_SPACE.search(text) else None


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Cause], ...]:
    """Return the patterns of the catalogue, the nearest to the root first."""
    signals = [
        (signal, cause)
        for cause in all_causes()
        for signal in cause.signals
        if signal.tier <= Tier.NAMED and signal.confidence >= _MIN_CONFIDENCE and not signal.weighed
    ]
    signals.sort(key=lambda item: (item[0].tier, -item[0].confidence, item[0].precedence))
    return tuple(
        (re.compile(pattern.expression if isinstance(pattern, AnchoredPattern) else pattern), cause)
        for signal, cause in signals
        for pattern in signal.patterns
    )
