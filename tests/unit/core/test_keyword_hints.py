"""An unknown keyword of a public function or class is an error that suggests the right one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import pytest

import holdfast
from holdfast.core.errors import UnknownName
from holdfast.core.keyword_hints import suggest_keywords


@suggest_keywords
def load(path: str, *, timeout: float = 1.0) -> str:
    if path == "broken":
        return load.missing(path)  # type: ignore[attr-defined, no-any-return]
    return f"{path} {timeout + 0}"


@suggest_keywords
@dataclass
class Plan:
    batch: int
    steps: int = 3


def test_unknown_keyword_is_named_with_similar_ones() -> None:
    assert load("a", timeout=2.0) == "a 2.0"
    assert Plan(batch=2) == Plan(2, steps=3)
    with pytest.raises(UnknownName) as caught:
        load("a", time_out=2.0)  # type: ignore[call-arg]
    assert str(caught.value) == "unknown keyword of load: 'time_out'; did you mean timeout?"
    with pytest.raises(UnknownName) as caught:
        Plan(bach=2)  # type: ignore[call-arg]
    assert str(caught.value) == "unknown keyword of Plan: 'bach'; did you mean batch?"


def test_other_errors_are_unchanged() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        load()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unsupported operand"):
        load("a", timeout=None)  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="missing"):
        load("broken")


def required_arguments(target: Callable[..., object]) -> list[None]:
    """Return values of the required parameters, for functions that check keywords themselves."""
    parameters = inspect.signature(target).parameters.values()
    return [
        None
        for each in parameters
        if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty
    ]


#: Functions without keyword options, and names that are no functions.
#: ``in_place``, ``TensorBoard`` and ``WandB`` pass theirs on.
WITHOUT_OPTIONS = {
    "Decision", "EvalResult", "Sink", "SyncPoint", "TensorBoard", "WandB", "in_place",
    "step",
}  # fmt: skip


@pytest.mark.parametrize("module", [holdfast, holdfast.comm, holdfast.evaluate, holdfast.sinks])
def test_public_functions_suggest_keywords(module: object) -> None:
    names = [name for name in module.__all__ if name not in WITHOUT_OPTIONS]  # type: ignore[attr-defined]
    for name in names:
        target = getattr(module, name)
        if inspect.ismodule(target) or not callable(target):
            continue
        try:
            with pytest.raises(UnknownName) as caught:
                target(*required_arguments(target), qqqqqqq=1)
        except TypeError as error:
            pytest.fail(f"{name}: {error!r}")
        assert "unknown keyword of" in str(caught.value), name
