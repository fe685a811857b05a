"""What the source around a call says: is it under a test of the rank, behind a loop, beside a swallowed exception."""
from __future__ import annotations
from collections.abc import Mapping
from typing import Any
from holdfast.facts.ranks import Place
from holdfast.facts.user_code import innermost_user as innermost_user
Source = Mapping[Place, Any]
def rank_guard(place, source): return None
def loop_swallows(place, source): return None
def is_after_loop_of(a, b, source): return False
