"""Record the divergences of functions that have run."""

from __future__ import annotations

import ast
import re
from itertools import chain

from msgspec.structs import replace

from holdfast.lint.abstract_domain.divergences import MAY_EXIST, Divergence
from holdfast.lint.abstract_domain.effects import EffectPath, EffectSummary
from holdfast.lint.abstract_domain.values import TaintKind, Value, is_rank_only, taint_kinds
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.control_flow import (
    checks_shared_storage,
    find_divergences,
    find_undecided,
)
from holdfast.lint.divergence.ordering import find_in_function
from holdfast.lint.divergence.partners import enters
from holdfast.lint.sources.modules import last_name

_REDUCTIONS = frozenset(
    {"all_reduce", "reduce", "all_gather_into_tensor", "gather", "reduce_tensor"}
)
_MAIN_PROCESS_NAME = re.compile(r"main|master|rank_?(zero|0)|chief")


class DivergenceRecorder:
    """Adds divergences to the current run of a function.

    ``strict``: also record undecided divergences.
    """

    def __init__(self, state: InterpreterState, *, strict: bool) -> None:
        self.state = state
        self._strict = strict
        modules = state.modules.values()
        self._test_files = frozenset(module.file for module in modules if module.is_test)

    def record_divergences(self, frame: Frame, body: EffectSummary) -> None:
        """Record the divergences of a function that has run."""
        partial = bool(frame.control) and is_rank_only(frame.control)
        self.record_path_divergences(body.path, on_some_ranks=partial)
        self.state.summaries.record_read("<program>", "alarm")
        for divergence in find_in_function(
            body, on_all_ranks=not frame.control, alarm=self.state.alarm_exception
        ):
            self._record(divergence)

    def record_path_divergences(self, path: EffectPath, *, on_some_ranks: bool = False) -> None:
        """Record the divergences of a path; ``on_some_ranks``: a test of the rank leads to it."""
        for divergence in chain(
            find_divergences(path), find_undecided(path) if self._strict else ()
        ):
            if on_some_ranks and divergence.kind in ("except", "swallowed"):
                continue  # the others are elsewhere
            self._record(divergence)

    def _record(self, divergence: Divergence) -> None:
        from_tests = divergence.sources and all(
            source.file in self._test_files for source in divergence.sources
        )
        if from_tests and divergence.location.file not in self._test_files:
            return  # arguments in tests are not those of the program
        is_shown = divergence.is_shown(in_large_program=not self.state.is_small)
        if self._is_unproved(divergence) or checks_shared_storage(divergence) or not is_shown:
            if not self._strict:
                return
            divergence = replace(divergence, kind="undecided")
        self.state.summaries.current.divergences.setdefault(
            (divergence.kind, divergence.location), divergence
        )

    def _is_unproved(self, divergence: Divergence) -> bool:
        """Return True if other ranks may enter the collective, for example in a thread."""
        op = divergence.op
        if op is None or divergence.kind not in ("branch", "exit"):
            return False
        if divergence.unproved == MAY_EXIST:
            return self.state.is_created_on_all_ranks(op.location)
        return bool(divergence.unproved) or any(
            enters(path, op) for _, path in self.state.summaries.current.threads
        )

    def check_update(self, frame: Frame, node: ast.AugAssign, old: Value, new: Value) -> None:
        """Record an update of uniform state by a rank-local value, such as a local factor."""
        local = bool(new.content) and new.agreed and not old.content
        if (
            local
            and isinstance(node.target, (ast.Name, ast.Attribute))
            and not _is_number(node.value)
            and not _is_reduced_later(frame, node)
        ):
            location = frame.location(node)
            self._record(
                Divergence("state", location, location, self.state.unparse(node), new.content)
            )

    def check_return(self, frame: Frame, node: ast.Return, value: Value) -> None:
        """Record a "main process" function that returns a test of the local rank."""
        name = frame.function.name if frame.function is not None else ""
        self._check_main_process(frame, node, name, value)

    def _check_main_process(self, frame: Frame, node: ast.AST, name: str, value: Value) -> None:
        """Record a local rank that is used as the global rank."""
        word = name.lower()
        if frame.function is not None and any(
            "local" in parameter for parameter in frame.function.parameters
        ):
            return  # the caller selects local or global
        if (
            taint_kinds(value.content) == {TaintKind.LOCAL_RANK}
            and "local" not in word
            and _MAIN_PROCESS_NAME.search(word)
        ):
            location = frame.location(node)
            self._record(Divergence("local", location, location, name, value.content))


def _is_number(node: ast.expr) -> bool:
    """Return True for a number for a report, ``loss.item()``: no weights are made of it."""
    return any(
        isinstance(child, ast.Call) and last_name(child.func) in ("item", "float", "int", "len")
        for child in ast.walk(node)
    )


def _is_reduced_later(frame: Frame, node: ast.AugAssign) -> bool:
    """Return True if the updated value is reduced over ranks later in the function."""
    body = frame.tree
    name = ast.unparse(node.target)
    return any(
        isinstance(child, ast.Call)
        and child.lineno > node.lineno
        and last_name(child.func) in _REDUCTIONS
        and bool(child.args)
        and ast.unparse(child.args[0]) == name
        for child in ast.walk(body)
    )
