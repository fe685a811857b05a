"""Limits the cost of traversing a pickled value, which can be unbounded for a small pickle.

A list that holds another list ten times, which holds a third ten times, and so on, has few objects
but exponentially many paths ("billion laughs"). Each object is visited once here, and its paths are
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: A traversal of this many steps takes seconds; 100,000 tensors need a tenth of it.
MAX_STEPS = 1 << 24
#: More tensors than any single file has; 100,000 take 7 s and 290 MB.
MAX_TENSORS = 1 << 17
#: state_dicts are about ten levels deep.
MAX_LEVELS = 400
_CONTAINERS = (dict, list, tuple, set, frozenset)


class _OpenContainer:
    """A container whose values are being counted; ``tensors`` are those of ``tensor_type``."""

    def __init__(self, value: Any, tensor_type: type | tuple[type, ...]) -> None:
        self.key = id(value)
        self.left: Iterator[Any] = iter(value.values() if isinstance(value, Mapping) else value)
        self.steps, self.levels, self.tensors = 1, 1, 0
        self.tensor_type = tensor_type

    def add(self, steps: int, levels: int, tensors: int) -> None:
        """Add the counts of a container inside this one."""
        self.steps += steps
        self.tensors += tensors
        self.levels = max(self.levels, levels + 1)


def expansion_problem(value: Any, tensor_type: type | tuple[type, ...] = ()) -> str:
    """Return why ``value`` must not be traversed (cyclic, too deep, too large), or ''."""
    if not isinstance(value, _CONTAINERS):
        return ""
    counted: dict[int, tuple[int, int, int]] = {}
    path, opened = [_OpenContainer(value, tensor_type)], {id(value)}
    while path:
        inner = _next_container(path[-1], counted)
        if inner is None:
            done = path.pop()
            if done.steps > MAX_STEPS:
                return f"its values expand to more than {MAX_STEPS:,}"
            if done.tensors > MAX_TENSORS:
                return f"it describes more than {MAX_TENSORS:,} tensors"
            opened.discard(done.key)
            counted[done.key] = done.steps, done.levels, done.tensors
            if path:
                path[-1].add(*counted[done.key])
            continue
        if id(inner) in opened:
            return "a value contains itself"
        path.append(_OpenContainer(inner, tensor_type))
        opened.add(id(inner))
        if len(path) > MAX_LEVELS:
            return f"its values are nested more than {MAX_LEVELS} levels deep"
    return ""


def _next_container(frame: _OpenContainer, counted: Mapping[int, tuple[int, int, int]]) -> Any:
    """Return the next container in ``frame`` that is not counted yet; None at the end."""
    for value in frame.left:
        if not isinstance(value, _CONTAINERS):
            frame.steps += 1
            frame.tensors += isinstance(value, frame.tensor_type)
        elif id(value) in counted:
            frame.add(*counted[id(value)])
        else:
            return value
    return None
