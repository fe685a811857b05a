"""Accept former keyword names of public functions, with a DeprecationWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def renamed_keywords(**current_names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that maps former keywords to current ones: ``former="current"``."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def renamed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for former, current in current_names.items():
                if former in kwargs:
                    text = f"keyword {former} is now {current}"
                    warnings.warn(text, DeprecationWarning, stacklevel=2)
                    kwargs[current] = kwargs.pop(former)
            return function(*args, **kwargs)

        return renamed

    return decorate
