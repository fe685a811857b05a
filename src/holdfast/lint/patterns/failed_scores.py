"""Find failed evaluations that become a number and decide: early stopping, best checkpoints."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.sources.modules import FUNCTIONS, Module, dotted_name, last_name

#: Prefilter: an ``except`` followed closely by a zero.
_HANDLER_WITH_ZERO = re.compile(
    r"^[ \t]*except\b[^\n]*(?:\n[^\n]*){0,5}?(?:return|=)[ \t]*0(?:\.0*)?[ \t]*(?:#[^\n]*)?$",
    re.MULTILINE,
)
_SCORE_NAME = re.compile(
    r"eval|valid|score|metric|accuracy|perplexity|bleu|rouge|auroc", re.IGNORECASE
)
_BEST_NAME = re.compile(r"best|highest|lowest|previous|prev_|patience|target", re.IGNORECASE)
_DECIDING_CALL = re.compile(
    r"(?:sched\w*|plateau)\.step$|early_?stop|stopper|is_best", re.IGNORECASE
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_failed_scores(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield each line where a failed evaluation becomes 0 and the value decides something."""
    for module in modules:
        if _HANDLER_WITH_ZERO.search(module.text):
            for node in _functions(module):
                yield from _zero_handlers(module, node, modules)


def _functions(module: Module) -> Iterator[_Function]:
    return (node for node in ast.walk(module.tree) if isinstance(node, FUNCTIONS))


def _zero_handlers(
    module: Module, function: _Function, modules: Collection[Module]
) -> Iterator[Divergence]:
    for block in (node for node in ast.walk(function) if isinstance(node, ast.Try)):
        for handler in block.handlers:
            catches_all = handler.type is None or dotted_name(handler.type).rpartition(".")[2] in (
                "Exception",
                "BaseException",
            )
            score = (
                _deciding_zero(function, block, handler.body[-1], modules) if catches_all else ""
            )
            if score:
                location = SourceLine(module.file, handler.body[-1].lineno, function.name)
                yield Divergence(
                    "failed",
                    location,
                    SourceLine(module.file, handler.lineno, function.name),
                    score,
                    (),
                )


def _deciding_zero(
    function: _Function, block: ast.Try, last: ast.stmt, modules: Collection[Module]
) -> str:
    """Return the name of a value that is 0 on failure and decides something; empty if none."""
    if isinstance(last, ast.Return) and _is_zero(last.value) and _SCORE_NAME.search(function.name):
        callers = (module for module in modules if function.name in module.text)
        decides = any(
            _decides_something(caller, _result_names(caller, function.name))
            for calling_module in callers
            for caller in _functions(calling_module)
        )
        return f"{function.name}()" if decides else ""
    if isinstance(last, ast.Assign) and _is_zero(last.value):
        names = {target.id for target in last.targets if isinstance(target, ast.Name)}
        if names & _score_names(block) and _decides_something(function, names):
            return ", ".join(sorted(names))
        return ""
    return ""


def _is_zero(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 0


def _result_names(function: ast.AST, name: str) -> set[str]:
    """Return the variables that hold the result of a call of that name."""
    results: set[str] = set()
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == name
        ):
            results |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return results


def _called_name(node: ast.expr) -> str:
    return dotted_name(node.func) if isinstance(node, ast.Call) else ""


def _score_names(block: ast.Try) -> set[str]:
    """Return the variables that the block assigns from an evaluation."""
    assignments = [
        statement
        for statement in block.body
        if isinstance(statement, ast.Assign) and _SCORE_NAME.search(_called_name(statement.value))
    ]
    return {
        target.id
        for assignment in assignments
        for target in assignment.targets
        if isinstance(target, ast.Name)
    }


def _decides_something(function: ast.AST, names: set[str]) -> bool:
    """Return True if one of these variables decides something."""
    for node in ast.walk(function) if names else ():
        if isinstance(node, ast.Compare):
            sides = [dotted_name(comparator) for comparator in (node.left, *node.comparators)]
            if names & set(sides) and any(
                _BEST_NAME.search(side) for side in sides if side not in names
            ):
                return True
        elif isinstance(node, ast.Call):
            passed = {dotted_name(arg) for arg in node.args}
            selects_best = dotted_name(node.func) in ("max", "min") and any(
                map(_BEST_NAME.search, passed - names)
            )
            if passed & names and (selects_best or _DECIDING_CALL.search(dotted_name(node.func))):
                return True
    return False
