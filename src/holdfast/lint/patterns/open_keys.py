"""Find loops over the keys that a rank's own data has added, with a collective for each key.

``log(name, value)`` is called under a test of the data, and ``flush()`` gathers what each name has:
ranks have other names, and so other numbers of collectives, in another order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.devices import habit
from holdfast.lint.patterns.rank_guards import Unit, is_rank_test, iter_units
from holdfast.lint.patterns.scopes import LOOPS, walk
from holdfast.lint.sources.modules import Module, last_name

_COLLECTIVE = re.compile(r"^(?:all_reduce|all_gather\w*|gather\w*|reduce\w*|broadcast\w*)$")
#: What agrees on the keys, or tests of what all ranks have.
_AGREES_ON_KEYS = re.compile(r"gather_object|all_gather_object|broadcast_object")
_ALIKE = re.compile(
    r"step|epoch|config|args|cfg|self\.|is_main|rank|debug|verbose| is (?:not )?None"
)


def find_open_keys(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield loops over the keys of a container that is emptied, filled by name, and reduced."""
    own = [module for module in modules if not module.is_test]
    for module in own:
        if ".clear()" not in module.text or (
            "gather" not in module.text and "reduce" not in module.text
        ):
            continue
        for unit in iter_units(module, re.compile(r"for .* in .*self\.\w+")):
            for loop in unit.nodes:
                if isinstance(loop, ast.For) and unit.owner is not None:
                    yield from _own_keys(own, unit, unit.owner, loop)


def _own_keys(
    modules: Collection[Module], unit: Unit, owner: ast.ClassDef, loop: ast.For
) -> Iterator[Divergence]:
    name = _iterated(loop.iter)
    if not name or not _has_collective(loop) or _AGREES_ON_KEYS.search(unit.text(unit.node)):
        return
    adders = set(_adders(owner, name))
    if adders and f"{name}.clear()" in ast.unparse(owner) and _called_by_data(modules, adders):
        message = (
            f"each rank has the keys of `{name}` that its own data added (by `{min(adders)}`): "
            "ranks enter other collectives in this loop; gather the keys first"
        )
        yield habit(unit, loop, "loop", message)


def _iterated(node: ast.expr) -> str:
    """Return ``self.pending`` for ``sorted(self.pending.items())``."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("items", "keys", "values"):
            node = node.func.value
        elif last_name(node.func) in ("sorted", "list", "tuple") and node.args:
            node = node.args[0]
        else:
            return ""
    text = ast.unparse(node)
    return text if re.fullmatch(r"self\.\w+", text) else ""


def _has_collective(loop: ast.For) -> bool:
    return any(
        isinstance(node, ast.Call) and _COLLECTIVE.match(last_name(node.func))
        for statement in loop.body
        for node in walk(statement)
    )


def _adders(owner: ast.ClassDef, name: str) -> Iterator[str]:
    """Yield the methods that add an entry under a key that they are given."""
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef):
            continue
        parameters = {each.arg for each in method.args.args} - {"self"}
        for node in walk(method):
            match node:
                case ast.Subscript(value=container, slice=ast.Name(id=key)):
                    if key in parameters and ast.unparse(container) == name:
                        yield method.name
                case ast.Call(
                    func=ast.Attribute(attr="setdefault", value=container), args=[key, *_]
                ):
                    if ast.unparse(container) == name and ast.unparse(key) in parameters:
                        yield method.name
                case _:
                    pass


def _called_by_data(modules: Collection[Module], adders: Collection[str]) -> bool:
    """Return True if an adder is called under a test of an element of a loop."""
    for module in modules:
        for name in adders:
            if f"{name}(" not in module.text:
                continue
            for unit in iter_units(module, f"{name}("):
                for call in unit.calls:
                    if last_name(call.func) == name and _is_by_data(unit, call):
                        return True
    return False


def _is_by_data(unit: Unit, call: ast.Call) -> bool:
    around = [parent for parent, _ in unit.ancestors(call)]
    tests = [parent.test for parent in around if isinstance(parent, ast.If)]
    in_loop = any(isinstance(parent, LOOPS) for parent in around)
    return in_loop and any(
        not _ALIKE.search(ast.unparse(test)) and not is_rank_test(unit, test) for test in tests
    )
