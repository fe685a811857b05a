"""Evaluations whose failure is handed on as a number, and decides: early stopping, best checkpoints, the schedule."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.facts.code.effects import Place
from holdfast.facts.code.modules import FUNCTIONS, Module, dotted, last_name
from holdfast.facts.code.partings import Parting

#: What is looked for at all: a handler, and soon behind it a nought.
_SHORT = re.compile(
    r"^[ \t]*except\b[^\n]*(?:\n[^\n]*){0,5}?(?:return|=)[ \t]*0(?:\.0*)?[ \t]*(?:#[^\n]*)?$", re.MULTILINE
)
_SCORE = re.compile(r"eval|valid|score|metric|accuracy|perplexity|bleu|rouge|auroc", re.IGNORECASE)
_BEST = re.compile(r"best|highest|lowest|previous|prev_|patience|target", re.IGNORECASE)
_DECIDES = re.compile(r"(?:sched\w*|plateau)\.step$|early_?stop|stopper|is_best", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def failed_scores(modules: Collection[Module]) -> Iterator[Parting]:
    """Each line on which a failed evaluation becomes 0, where something is decided by what it gives."""
    for module in modules:
        if _SHORT.search(module.text):
            for node in _functions(module):
                yield from _of_function(module, node, modules)


def _functions(module: Module) -> Iterator[_Function]:
    return (node for node in ast.walk(module.tree) if isinstance(node, FUNCTIONS))


def _of_function(module: Module, function: _Function, modules: Collection[Module]) -> Iterator[Parting]:
    for block in (each for each in ast.walk(function) if isinstance(each, ast.Try)):
        for handler in block.handlers:
            wide = handler.type is None or dotted(handler.type).rpartition(".")[2] in ("Exception", "BaseException")
            what = _counted(function, block, handler.body[-1], modules) if wide else ""
            if what:
                place = Place(module.file, handler.body[-1].lineno, function.name)
                yield Parting("failed", place, Place(module.file, handler.lineno, function.name), what, ())


def _counted(function: _Function, block: ast.Try, last: ast.stmt, modules: Collection[Module]) -> str:
    """What is 0 where the block failed, and decides something; empty where that is not so."""
    if isinstance(last, ast.Return) and _is_nought(last.value) and _SCORE.search(function.name):
        callers = (each for each in modules if function.name in each.text)
        decides = any(_decides(each, _given(each, function.name)) for one in callers for each in _functions(one))
        return f"{function.name}()" if decides else ""
    if isinstance(last, ast.Assign) and _is_nought(last.value):
        names = {each.id for each in last.targets if isinstance(each, ast.Name)}
        return ", ".join(sorted(names)) if names & _scores(block) and _decides(function, names) else ""
    return ""


def _is_nought(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value == 0


def _given(function: ast.AST, name: str) -> set[str]:
    """The variables that hold what a call of that name gives."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and last_name(node.value.func) == name:
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


def _calls(node: ast.expr) -> str:
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def _scores(block: ast.Try) -> set[str]:
    """The variables to which the block gives what an evaluation gives."""
    given = [each for each in block.body if isinstance(each, ast.Assign) and _SCORE.search(_calls(each.value))]
    return {target.id for each in given for target in each.targets if isinstance(target, ast.Name)}


def _decides(function: ast.AST, names: set[str]) -> bool:
    """Is something decided by one of these variables?"""
    for node in ast.walk(function) if names else ():
        if isinstance(node, ast.Compare):
            sides = [dotted(each) for each in (node.left, *node.comparators)]
            if names & set(sides) and any(_BEST.search(each) for each in sides if each not in names):
                return True
        elif isinstance(node, ast.Call):
            given = {dotted(each) for each in node.args}
            picks = dotted(node.func) in ("max", "min") and any(map(_BEST.search, given - names))
            if given & names and (picks or _DECIDES.search(dotted(node.func))):
                return True
    return False
