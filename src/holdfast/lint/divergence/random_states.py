"""Find states of random generators that one rank saves and all ranks restore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import (
    DICTS,
    RANK_KINDS,
    RANK_OR_SELECTED,
    Value,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import RANDOM_STATE, RANK_TEXT
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState

_HOMES = ("torch.", "torch.random.", "torch.cuda.", "torch.cuda.random.")
#: Functions that return the state of a generator, and that set it.
READS_STATE = frozenset({
    "random.getstate", "numpy.random.get_state",
    *(f"{home}get_rng_state{many}" for home in _HOMES for many in ("", "_all")),
})  # fmt: skip
_SETS_STATE = frozenset({
    "random.setstate", "numpy.random.set_state",
    *(f"{home}set_rng_state{many}" for home in _HOMES for many in ("", "_all")),
})  # fmt: skip
#: Functions that save their first argument: position and name of the path.
_SAVES = {"torch.save": (1, "f"), "pickle.dump": (1, "file"), "joblib.dump": (1, "filename")}
#: What the divergence of a restored state has in place of a test.
_RESTORED = "restored random state"
_MAX_DEPTH = 4
_Key = TypeVar("_Key")


def record_random_state(state: InterpreterState, call: LibraryCall) -> None:
    """Record a call that saves the state of a generator, or restores one on all ranks."""
    if call.name in _SAVES and call.arguments.positional and _holds_state(call.first("obj")):
        path = call.arguments.get(*_SAVES[call.name])
        own = path is not None and _is_own(path)
        lone = bool(taint_kinds(call.frame.control) & RANK_KINDS) and not own
        state.saved_states[call.location] = lone and state.saved_states.get(call.location, True)
    if call.name not in _SETS_STATE or taint_kinds(call.frame.control) & RANK_KINDS:
        return
    values = call.arguments.all_values
    restored = values[0] if values else None
    if (
        restored is not None
        and not (restored.known or restored.agreed or _is_own(restored))
        and not _holds_state(restored)
    ):
        at = call.location
        divergence = Divergence("habit-seed", at, at, _RESTORED, (), by_name=True)
        state.summaries.current.divergences.setdefault((_RESTORED, at), divergence)


def restored_everywhere(
    state: InterpreterState, divergences: Mapping[_Key, Divergence]
) -> dict[_Key, Divergence]:
    """Return the divergences, with restored states only where one rank alone saves its own.

    The program has to draw different numbers on each rank, too.
    """
    saves = state.saved_states
    found = bool(saves) and all(saves.values()) and state.has_own_random_numbers
    kept = {}
    for key, divergence in divergences.items():
        if divergence.text != _RESTORED:
            kept[key] = divergence
        elif found:
            at = next(iter(saves))
            message = (
                f"all ranks restore one random state, as only one rank saves its own (line "
                f"{at.line} of {at.file.rpartition('/')[2]}): after a resume they draw the same "
                "numbers; save one state per rank"
            )
            kept[key] = Divergence(
                divergence.kind, divergence.location, at, "", (), detail=message, by_name=True
            )
    return kept


def _is_own(value: Value) -> bool:
    """Return True for a value or path that depends on the rank."""
    return bool(taint_kinds(value.content) & RANK_OR_SELECTED) or RANK_TEXT in value.objects


def _holds_state(value: Value, depth: int = 0) -> bool:
    """Return True for the state of a generator of this process, or a container of it."""
    if RANDOM_STATE in value.objects:
        return True
    inner = [*(value.items or ())]
    for obj in value.objects:
        if isinstance(obj, DICTS):
            inner += obj.entries.values()
    return depth < _MAX_DEPTH and any(_holds_state(each, depth + 1) for each in inner)
