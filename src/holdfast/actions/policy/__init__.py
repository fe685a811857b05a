"""What to do after a verdict. Pure: no clock, no files, no processes; the ledger in, a decision out.

``decisions`` has the words, ``treatments`` the table of causes, ``past`` what the ledger says, ``remedies`` what the
next start does differently, ``deciding`` puts them together.
"""

from holdfast.actions.policy import remedies
from holdfast.actions.policy.deciding import decide
from holdfast.actions.policy.decisions import (
    DO_NOT_REQUEUE,
    Course,
    Decision,
    Failure,
    OnHang,
    Past,
    Scene,
    Terms,
    failure,
)

__all__ = [
    "DO_NOT_REQUEUE",
    "Course",
    "Decision",
    "Failure",
    "OnHang",
    "Past",
    "Scene",
    "Terms",
    "decide",
    "failure",
    "remedies",
]
