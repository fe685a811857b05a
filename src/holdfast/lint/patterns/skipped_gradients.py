"""Find collectives that a rank skips if its batch gives parameters no gradient.

``backward`` leaves ``.grad`` None for parameters that the batch of a rank did not use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, Words, iter_scopes, walk, walk_nodes
from holdfast.lint.sources.modules import Module, SymbolTable, last_name

_WORDS = Words((".grad is not None", ".grad is None", ".grad != None"))
_GRADIENT = re.compile(r"\.grad is not None|\.grad != None")
_NO_GRADIENT = re.compile(r"^\w+\.grad is None$")
_COLLECTIVE = re.compile(r"all_?reduce|all_?gather|^reduce|^broadcast|^barrier$|reduce_scatter")
#: What a program knows of parameters that some batches do not use.
_LEAVES_OUT = re.compile(r"find_unused_parameters[\"']? *[=:] *True")
_COUNTS = frozenset({"any", "all", "sum", "numel", "count_nonzero", "isfinite", "len"})


def find_skipped_gradients(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield returns of ranks without gradients, and tests of a gradient around a collective.

    The latter only if the program runs no backward for some batches, or says that parameters may be
    unused.
    """
    modules = [module for module in modules if not module.is_test and "torch" in module.text]
    if not any(_WORDS.occur_in(module.text) for module in modules):
        return
    partial = any(map(_may_leave_out, modules))
    for module in modules:
        if not _WORDS.occur_in(module.text):
            continue
        for scope in iter_scopes(module, names, _WORDS):
            if isinstance(scope.node, ast.Module):
                continue
            yield from _early_exits(scope)
            if partial:
                yield from _guarded_reductions(scope)


def _may_leave_out(module: Module) -> bool:
    """Return True if a rank may run no backward for its batch, or not for all parameters."""
    if _LEAVES_OUT.search(module.text):
        return True
    if ".backward(" not in module.text:
        return False
    return any(
        isinstance(node, ast.If) and _counts(node.test) and _calls(node.body, "backward")
        for node in walk(module.tree)
    )


def _counts(test: ast.expr) -> bool:
    """Return True for a test of how much of a batch there is: ``(labels != -100).any()``."""
    return any(
        isinstance(node, ast.Call) and last_name(node.func) in _COUNTS for node in walk(test)
    )


def _calls(body: Sequence[ast.stmt], name: str) -> bool:
    return any(
        isinstance(node, ast.Call) and last_name(node.func) == name for node in walk_nodes(*body)
    )


def _collective(nodes: Sequence[ast.AST], after: int = 0) -> ast.Call | None:
    """Return the first collective after a line, by its name."""
    calls = (node for node in nodes if isinstance(node, ast.Call) and node.lineno > after)
    return next((call for call in calls if _COLLECTIVE.search(last_name(call.func))), None)


def _early_exits(scope: CodeScope) -> Iterator[Divergence]:
    """Yield ``if not grads: return`` before a collective."""
    lists = {
        node.targets[0].id
        for node in scope.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.ListComp)
        and _selects_gradients(node.value)
    }
    for node in scope.nodes if lists else ():
        if not isinstance(node, ast.If) or not isinstance(node.body[-1], ast.Return):
            continue
        tested = _tested_list(node.test)
        call = _collective(scope.nodes, node.lineno) if tested in lists else None
        if call is not None and _collective(walk_nodes(*node.body)) is None:
            yield _found(
                scope,
                node.body[-1],
                f"a rank whose batch gives none of the parameters a gradient returns under "
                f"`{ast.unparse(node.test)}`, and the others wait in {last_name(call.func)} at "
                f"line {call.lineno}: enter it with zeros, too",
            )


def _selects_gradients(node: ast.ListComp) -> bool:
    tests = [test for generator in node.generators for test in generator.ifs]
    return any(_GRADIENT.search(ast.unparse(test)) for test in tests)


def _tested_list(test: ast.expr) -> str:
    """Return the list in ``not grads`` and ``len(grads) == 0``."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)):
            return name
        case ast.Compare(
            left=ast.Call(func=ast.Name(id="len"), args=[ast.Name(id=name)]),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=0)],
        ):
            return name
        case _:
            return ""


def _guarded_reductions(scope: CodeScope) -> Iterator[Divergence]:
    """Yield collectives of one gradient each, for the parameters that have one."""
    for loop in scope.nodes:
        if not isinstance(loop, ast.For):
            continue
        for at, statement in enumerate(loop.body):
            if not isinstance(statement, ast.If) or statement.orelse:
                continue
            test = ast.unparse(statement.test)
            skips = bool(_NO_GRADIENT.match(test)) and isinstance(statement.body[-1], ast.Continue)
            if skips:
                call = _collective(walk_nodes(*loop.body[at + 1 :]))
            elif _GRADIENT.search(test):
                call = _collective(walk_nodes(*statement.body))
            else:
                continue
            if call is not None:
                yield _found(
                    scope,
                    call,
                    f"{last_name(call.func)} runs for the parameters that have a gradient on this "
                    f"rank (`{test}`), and a batch may leave out some: ranks then reduce different "
                    "tensors; fill in zeros for missing gradients",
                )


def _found(scope: CodeScope, node: ast.AST, message: str) -> Divergence:
    at = scope.location(node)
    return Divergence("habit-branch", at, at, "", (), detail=message, by_name=True)
