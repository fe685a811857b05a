"""Suggest the right keyword when a public function or class gets an unknown one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.core.errors import UnknownName

_F = TypeVar("_F", bound=Callable[..., Any])


def suggest_keywords(target: _F) -> _F:
    """Decorate a function or class: an unknown keyword raises UnknownName, with similar names.

    Other errors, also a TypeError in the function itself, are unchanged.
    """
    if inspect.isclass(target):
        initialize: Any = vars(target)["__init__"]
        setattr(target, "__init__", _suggest(initialize, target.__name__))  # noqa: B010 - mypy
        return target
    return _suggest(target, target.__name__)


def _suggest(function: _F, shown: str) -> _F:
    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        try:
            return function(*args, **keywords)
        except TypeError:
            raise_unknown_keyword(function, shown, keywords)
            raise

    return checked  # type: ignore[return-value]


def raise_unknown_keyword(
    function: Callable[..., Any], shown: str, keywords: Mapping[str, object]
) -> None:
    """Raise UnknownName if the function has no keyword of one of these names."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD and each.annotation != "Never" for each in parameters):
        return
    known = [
        each.name
        for each in parameters
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name != "self"
    ]
    unknown = next((name for name in keywords if name not in known), None)
    if unknown is not None:
        raise UnknownName(f"keyword of {shown}:", unknown, known) from None
