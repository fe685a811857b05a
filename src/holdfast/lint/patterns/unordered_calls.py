"""Find collectives in functions that Python calls at a moment of its own on each rank.

The garbage collector calls ``__del__``, and a signal interrupts each rank at another place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.core.rank_table import SourceLine
from holdfast.lint import library
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.call_graph import resolve_callee, scope_of_function
from holdfast.lint.patterns.scopes import CodeScope, Words, argument, iter_scopes
from holdfast.lint.sources.modules import Function, Module, SymbolTable

_WORDS = Words(("def __del__", "signal.signal("))
_HOME = "torch.distributed."
#: Nested calls to follow, and collectives of a second group, which only such a function may use.
_MAX_DEPTH, _GROUP = 3, "group"
#: A signal that interrupts a blocked rank; alarms have a rule of their own.
_ALARM = re.compile(r"SIGALRM|SIGINT")


def find_unordered_calls(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield the collectives that ``__del__`` and signal handlers enter."""
    for module in modules:
        if module.is_test or not _WORDS.occur_in(module.text):
            continue
        for scope in iter_scopes(module, names):
            if scope.name == "__del__":
                yield from _entered(scope, "`__del__` runs when the garbage collector decides")
            for call in scope.library_calls("signal.signal"):
                handler = argument(call, 1, "handler")
                number = argument(call, 0, "signalnum")
                function = scope.resolve(handler) if handler is not None else None
                if number is None or _ALARM.search(ast.unparse(number)):
                    continue
                inner = (
                    scope_of_function(function, scope) if isinstance(function, Function) else None
                )
                if inner is not None:
                    yield from _entered(inner, "a signal interrupts each rank at another place")


def _entered(scope: CodeScope, reason: str) -> Iterator[Divergence]:
    found = _collective(scope, 0)
    if found is not None:
        name, at = found
        message = f"{name} runs here in another order on each rank: {reason}"
        yield Divergence("habit-thread", at, at, name, (), detail=message, by_name=True)


def _collective(scope: CodeScope, depth: int) -> tuple[str, SourceLine] | None:
    """Return the first collective that a function enters, and the line in this function."""
    for call in scope.calls:
        name = scope.library_call_name(call)
        known = library.CALLS.get(name) if name.startswith(_HOME) else None
        if known is not None and known.kind == "collective":
            if any(keyword.arg == _GROUP for keyword in call.keywords):
                continue
            return known.name, scope.location(call)
        callee = resolve_callee(scope, call) if depth < _MAX_DEPTH else None
        inner = scope_of_function(callee, scope) if callee is not None else None
        deeper = _collective(inner, depth + 1) if inner is not None else None
        if deeper is not None:
            return deeper[0], scope.location(call)
    return None
