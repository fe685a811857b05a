"""Find collectives without the group that their function or class was created for."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from holdfast.lint import library
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, Words, argument, iter_scopes, walk
from holdfast.lint.sources.modules import Module, SymbolTable

_HOME = "torch.distributed."
_WORDS = Words(("all_reduce(", "all_gather", "broadcast", "reduce_scatter", "all_to_all"))
#: Positions of the group in queries.
_QUERIES = {f"{_HOME}get_world_size": 0, f"{_HOME}get_rank": 0}
_COLLECTIVES = {
    name: call.parameters.index("group")
    for name, call in library.CALLS.items()
    if name.startswith(_HOME) and call.kind == "collective" and "group" in call.parameters
    if "barrier" not in name
}


def find_omitted_groups(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield collectives on all ranks in a function whose other calls pass its one group.

    The group is a parameter of the function, or an attribute of the class of which only the size
    and the rank are used.
    """
    for module in modules:
        if not module.is_test and "group" in module.text and _WORDS.occur_in(module.text):
            for scope in iter_scopes(module, names, _WORDS):
                yield from _omitted_in(scope)


def _omitted_in(scope: CodeScope) -> Iterator[Divergence]:
    groups: set[str] = set()
    omitted: list[ast.Call] = []
    for call in scope.calls:
        name = scope.library_call_name(call)
        at = _COLLECTIVES.get(name, _QUERIES.get(name))
        if at is None or any(keyword.arg is None for keyword in call.keywords):
            continue
        group = argument(call, at, "group")
        if group is not None:
            groups.add(ast.unparse(group))
        elif name in _COLLECTIVES:
            omitted.append(call)
    if omitted and not groups:
        groups = _groups_of_size(scope)
    elif groups and not groups <= set(scope.parameters):
        return
    if len(groups) == 1:
        group_text = groups.pop()
        for call in omitted:
            name = scope.library_call_name(call).removeprefix(_HOME)
            message = (
                f"{name} has no `group={group_text}`: it runs on all ranks, and those outside of "
                "the group enter it at another time or never"
            )
            location = scope.location(call)
            yield Divergence(
                "habit-argument", location, location, name, (), detail=message, by_name=True
            )
            return


def _groups_of_size(scope: CodeScope) -> set[str]:
    """Return the groups that a class keeps, and whose size it reads, but passes to no call."""
    owner = scope.owner
    constructor = next(
        (
            each
            for each in (owner.body if owner is not None else ())
            if isinstance(each, ast.FunctionDef) and each.name == "__init__"
        ),
        None,
    )
    if owner is None or constructor is None or scope.node is constructor:
        return set()
    parameters = {each.arg for each in constructor.args.args}
    stored = {
        ast.unparse(node.targets[0]): node.value.id
        for node in walk(constructor)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in parameters
    }
    stored |= {
        ast.unparse(node.targets[0]): ""
        for node in walk(constructor)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Attribute)
        and scope.library_call_name(node.value) == f"{_HOME}new_group"
    }
    queried, passed = set(), set()
    for call in (node for node in walk(owner) if isinstance(node, ast.Call)):
        given = {ast.unparse(each) for each in (*call.args, *(k.value for k in call.keywords))}
        if scope.library_call_name(call) in _QUERIES:
            queried |= given
        else:
            passed |= given
    return {
        attribute
        for attribute, parameter in stored.items()
        if queried & {attribute, parameter} and attribute not in passed
    }
