"""The recovery policy. Pure: no clock, files or processes; failures in, a decision out.

``decisions`` holds the options, ``treatments`` the kind of each fault, ``attempts`` what the ledger
shows, ``remedies`` the adjustments of the next start; ``engine`` decides.
"""

from holdfast.launcher.policy import remedies
from holdfast.launcher.policy.decisions import (
    DO_NOT_REQUEUE,
    OnHang,
    RecoveryOptions,
    build_failure,
)
from holdfast.launcher.policy.engine import decide

__all__ = [
    "DO_NOT_REQUEUE",
    "OnHang",
    "RecoveryOptions",
    "build_failure",
    "decide",
    "remedies",
]
