"""Select the line to report for a collective that is entered through calls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    EffectPath,
    FunctionCall,
    LoopEffect,
)

#: Maximum number of effects to search.
_MAX_EFFECTS = 2000


def reported_line(chain: tuple[SourceLine, ...], path: EffectPath) -> SourceLine:
    """Return the line to report: the call in the branch, or the line in a wrapper."""
    at = 0
    while at < len(chain) - 1:
        called = _calls_by_line(path).get(chain[at])
        if called is None or not called.forwards:
            break
        path, at = called.callee.path, at + 1
    return chain[at]


def _calls_by_line(path: Sequence[Effect]) -> dict[SourceLine, FunctionCall]:
    """Return the calls of a path that enter a collective, by line."""
    calls: dict[SourceLine, FunctionCall] = {}
    for effect in islice(path, _MAX_EFFECTS):
        if isinstance(effect, FunctionCall):
            if effect.callee.sequence:
                calls.setdefault(effect.location, effect)
        elif isinstance(effect, (Branch, LoopEffect)):
            sides = (
                (effect.yes, effect.no)
                if isinstance(effect, Branch)
                else (effect.body, effect.orelse)
            )
            calls = _calls_by_line(sides[1]) | _calls_by_line(sides[0]) | calls
    return calls


def is_wrapper_call(chain: tuple[SourceLine, ...], path: Sequence[Effect]) -> bool:
    """Return True if a wrapper calls the skipped function, whose test is then the guard."""
    called = _calls_by_line(path).get(chain[0])
    return called is not None and called.forwards
