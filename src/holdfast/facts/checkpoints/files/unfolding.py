"""How large a value of a pickle becomes for who walks through it, which may be without end for a small pickle.

A list that holds another one ten times, which holds a third one ten times, and so on, has few objects and many ways to
each of them (the billion laughs). Every object is looked at once here, and the ways to it are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: A walk of so many steps takes some seconds; state_dicts of 100,000 tensors unfold to a tenth of it.
MOST_STEPS = 1 << 24
#: State_dicts are some ten levels deep.
MOST_LEVELS = 400
_CONTAINERS = (dict, list, tuple, set, frozenset)


class _Open:
    """A container whose values are being counted."""

    def __init__(self, value: Any) -> None:
        self.key = id(value)
        self.left: Iterator[Any] = iter(value.values() if isinstance(value, Mapping) else value)
        self.steps, self.levels = 1, 1

    def add(self, steps: int, levels: int) -> None:
        """A container in it was counted."""
        self.steps += steps
        self.levels = max(self.levels, levels + 1)


def excess(value: Any) -> str:
    """Why nobody should walk through ``value``: it holds itself, is too deep or too large; nothing where one may."""
    if not isinstance(value, _CONTAINERS):
        return ""
    counted: dict[int, tuple[int, int]] = {}
    path, opened = [_Open(value)], {id(value)}
    while path:
        inner = _next(path[-1], counted)
        if inner is None:
            done = path.pop()
            if done.steps > MOST_STEPS:
                return f"its values unfold to more than {MOST_STEPS:,}"
            opened.discard(done.key)
            counted[done.key] = done.steps, done.levels
            if path:
                path[-1].add(done.steps, done.levels)
            continue
        if id(inner) in opened:
            return "a value in it holds itself"
        path.append(_Open(inner))
        opened.add(id(inner))
        if len(path) > MOST_LEVELS:
            return f"its values are more than {MOST_LEVELS} levels deep"
    return ""


def _next(frame: _Open, counted: Mapping[int, tuple[int, int]]) -> Any:
    """The next container in this one that was not counted yet; None where there is no more."""
    for value in frame.left:
        if not isinstance(value, _CONTAINERS):
            frame.steps += 1
        elif id(value) in counted:
            frame.add(*counted[id(value)])
        else:
            return value
    return None
