"""Find random states and shares of the data that one rank saves and all ranks restore."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import (
    DICTS,
    RANK_KINDS,
    RANK_OR_SELECTED,
    Taint,
    Value,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    RANDOM_STATE,
    RANK_SHARE,
    RANK_TEXT,
    SHARD,
    LibraryInstance,
)
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
_SAVES = {
    "torch.save": (1, "f"), "pickle.dump": (1, "file"), "joblib.dump": (1, "filename"),
    "json.dump": (1, "fp"), "numpy.save": (1, "arr"),
}  # fmt: skip
#: What the divergence of a restored state has in place of a test.
_RESTORED = "restored random state"
_MAX_DEPTH = 4


def record_random_state(state: InterpreterState, call: LibraryCall) -> None:
    """Record a call that saves the state of a generator, or restores one on all ranks."""
    if call.name in _SAVES and call.arguments.positional:
        path = call.arguments.get(*_SAVES[call.name])
        own = path is not None and _is_own(path)
        lone = bool(taint_kinds(call.frame.control) & RANK_KINDS) and not own
        saved = call.first("obj")
        if _holds(saved, RANDOM_STATE):
            state.saved_states[call.location] = lone and state.saved_states.get(call.location, True)
        if lone:
            _record_lone_share(state, call, saved)
    if call.name not in _SETS_STATE or taint_kinds(call.frame.control) & RANK_KINDS:
        return
    values = call.arguments.all_values
    restored = values[0] if values else None
    if (
        restored is not None
        and not (restored.known or restored.agreed or _is_own(restored))
        and not _holds(restored, RANDOM_STATE)
    ):
        at = call.location
        divergence = Divergence("habit-seed", at, at, _RESTORED, (), by_name=True)
        state.summaries.current.divergences.setdefault((_RESTORED, at), divergence)


def _record_lone_share(state: InterpreterState, call: LibraryCall, saved: Value) -> None:
    """Record one rank's share of the data that it alone saves: those of the others are lost."""
    share = _own_share(saved)
    is_shard = _holds(saved, SHARD)
    if not (share or is_shard) or call.frame.scope.module.is_test:
        return
    what = "share" if share else "shard of the optimizer's state"
    why = f" ({share[0].text})" if share else ""
    message = (
        f"one rank saves its own {what} only{why}: those of the other ranks are lost, "
        "and all ranks that load the file get this one; gather them, or save one file per rank"
    )
    at, kind = call.location, "habit-state"
    divergence = Divergence(kind, at, at, call.name, share, detail=message, by_name=True)
    state.summaries.current.divergences.setdefault((kind, at), divergence)


def _own_share(value: Value, depth: int = 0) -> Taint:
    """Return why a list, or one in a container, is a share that was taken by the rank.

    What only grows under a test of the rank is no share: the other ranks have none.
    """
    if value.agreed or depth > _MAX_DEPTH:
        return ()
    is_share = RANK_SHARE in value.objects
    own = tuple(source for source in value.length if source.kind in RANK_KINDS) if is_share else ()
    inner = [*(value.items or ())]
    for obj in value.objects if not own else ():
        if isinstance(obj, DICTS):
            inner += obj.entries.values()
    return own or next(filter(None, (_own_share(each, depth + 1) for each in inner)), ())


def with_restored_states(
    state: InterpreterState, divergences: Mapping[tuple[str, SourceLine], Divergence]
) -> dict[tuple[str, SourceLine], Divergence]:
    """Return the divergences, with the random states of one rank that all ranks restore.

    The program has to draw different numbers on each rank.
    """
    kept = {key: each for key, each in divergences.items() if each.text != _RESTORED}
    restored = [each.location for each in divergences.values() if each.text == _RESTORED]
    saves = state.saved_states
    if restored and saves and all(saves.values()) and state.has_own_random_numbers:
        again = restored[0]
        for at in saves:
            message = (
                f"only one rank saves its random state, and all ranks restore it (line "
                f"{again.line} of {PurePath(again.file).name}): after a resume they draw the same "
                "numbers; save one state per rank"
            )
            kept["habit-seed", at] = Divergence(
                "habit-seed", at, again, "", (), detail=message, by_name=True
            )
    return kept


def _is_own(value: Value) -> bool:
    """Return True for a value or path that depends on the rank."""
    return bool(taint_kinds(value.content) & RANK_OR_SELECTED) or RANK_TEXT in value.objects


def _holds(value: Value, mark: LibraryInstance, depth: int = 0) -> bool:
    """Return True for what has a mark, as the state of a generator, or a container of it."""
    if mark in value.objects:
        return True
    inner = [*(value.items or ())]
    for obj in value.objects:
        if isinstance(obj, DICTS):
            inner += obj.entries.values()
    return depth < _MAX_DEPTH and any(_holds(each, mark, depth + 1) for each in inner)
