"""Groups of NVIDIA's Xid errors by meaning (docs.nvidia.com/deploy/xid-errors)."""

from __future__ import annotations

#: Xids that a program causes itself, and those that only follow another error.
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 44, 57, 68, 69})
XIDS_THAT_FOLLOW = frozenset({45})
