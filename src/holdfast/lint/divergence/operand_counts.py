"""Find lists and tensors of a collective that do not fit the number of ranks of its group.

torch 2.13 distributed_c10d.py: output lists need one tensor for each rank of the group;
``_validate_output_list_for_rank`` raises where ``gather_list`` is passed on another rank than the
root, or missing there, and so does ``scatter`` for ``scatter_list``. ``all_gather_into_tensor``
needs an output, and ``reduce_scatter_tensor`` an input, of as many times the size of the other.
"""

from __future__ import annotations

import ast
import re

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import (
    NO_CONSTANT,
    NONE_OBJECT,
    UNKNOWN_OBJECT,
    Value,
)
from holdfast.lint.abstract_state.abstract_objects import (
    WORLD_SIZE,
    GroupNumber,
    LibraryInstance,
    OnePerRank,
    ProcessGroup,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.group_numbers import only_group, single_number
from holdfast.lint.library import CollectiveCall
from holdfast.lint.patterns.scopes import walk
from holdfast.lint.sources.modules import dotted_name, last_name

#: The arguments with one part for each rank, and whether the collective writes them.
_PARTS = {
    "all_gather": (("tensor_list", True),),
    "all_gather_object": (("object_list", False),),
    "all_gather_into_tensor": (("output_tensor", False),),
    "gather": (("gather_list", True),),
    "gather_object": (("object_gather_list", False),),
    "scatter": (("scatter_list", False),),
    "scatter_object_list": (("scatter_object_input_list", False),),
    "reduce_scatter": (("input_list", False),),
    "reduce_scatter_tensor": (("input", False),),
    "all_to_all": (("output_tensor_list", True), ("input_tensor_list", False)),
}
#: The list that the root alone passes, and whether other ranks raise if they pass one.
_ROOT_LISTS = {
    "gather": ("gather_list", "dst", True),
    "gather_object": ("object_gather_list", "dst", True),
    "scatter": ("scatter_list", "src", True),
    "scatter_object_list": ("scatter_object_input_list", "src", False),
}
#: The larger and the smaller tensor.
_SIZES = {
    "all_gather_into_tensor": ("output_tensor", "input_tensor"),
    "reduce_scatter_tensor": ("input", "output"),
}
_HOMES = frozenset({"torch.distributed", "deepspeed.comm"})
_LIKE = frozenset({"empty_like", "zeros_like", "ones_like"})
#: Names of the group of all ranks.
_WORLD_NAME = re.compile(r"world|default|global", re.IGNORECASE)
#: A test that may select the root.
_SELECTS_RANK = re.compile(r"rank|main|master|root|src|dst|leader|chief|coord|zero", re.IGNORECASE)


def product_per_rank(node: ast.BinOp, left: Value, right: Value) -> tuple[OnePerRank, ...]:
    """Return what ``[tensor] * world_size`` and ``world_size * count`` are."""
    if not isinstance(node.op, ast.Mult):
        return ()
    sizes = [size for size in (rank_count(left), rank_count(right)) if size is not None]
    listed = next((side for side in (node.left, node.right) if isinstance(side, ast.List)), None)
    if listed is not None:
        repeated = isinstance(next(iter(listed.elts), None), (ast.Call, ast.Name, ast.Attribute))
        known = sizes[0] if sizes and len(listed.elts) < 2 else None
        return (OnePerRank(known, repeated),) if sizes or repeated else ()
    return (OnePerRank(sizes[0]),) if len(sizes) == 1 else ()


def rank_count(value: Value) -> object | None:
    """Return the number of ranks, of the job or of a group, that a value is; None for others."""
    if WORLD_SIZE in value.objects:
        return WORLD_SIZE if len(value.objects) == 1 else None
    return single_number(value, "size")


def parts_of_size(size: Value) -> tuple[OnePerRank, ...]:
    """Return what a tensor is whose first dimension has this size."""
    first = size.items[0] if size.items else size
    count = rank_count(first)
    return (OnePerRank(count),) if count is not None else tuple(first.objects_of(OnePerRank))


def record_operand_counts(
    state: InterpreterState, call: LibraryCall, collective: CollectiveCall, group: Value | None
) -> None:
    """Record operands of a collective that do not fit its group, or are passed on wrong ranks."""
    entries = _PARTS.get(collective.name, ())
    if not entries or call.name.rpartition(".")[0] not in _HOMES:
        return
    for name, written in entries:
        position = collective.parameters.index(name)
        value, node = call.arguments.get(position, name), call.arguments.node(position, name)
        parts = value.objects_of(OnePerRank) if value is not None else []
        if value is None or node is None or len(parts) != 1 or len(value.objects) > 2:
            continue
        text = state.unparse(node)
        if written and parts[0].repeated:
            message = (
                f"`{text}` holds one tensor several times, and {collective.name} writes one part "
                "into each: all become the last one; create a tensor for each rank"
            )
            _record(state, call, "habit-result", message)
        elif parts[0].size is not None:
            _record_count(state, call, parts[0].size, group, text)
    message = _root_list(state, call, collective) or _equal_sizes(call, collective)
    if message:
        _record(state, call, "habit-argument", message)


def _record(
    state: InterpreterState, call: LibraryCall, kind: str, message: str, *, by_name: bool = False
) -> None:
    if call.frame.scope.module.is_test:
        return
    at = call.location
    found = Divergence(kind, at, at, call.name, (), detail=message, by_name=by_name)
    state.summaries.current.divergences.setdefault((kind, at), found)


def _record_count(
    state: InterpreterState, call: LibraryCall, size: object, passed: Value | None, text: str
) -> None:
    """Record a list for the ranks of the job, passed with a group of fewer, or the reverse."""
    group, short = only_group(passed), call.name.rpartition(".")[2]
    in_world = passed is None or passed.const is None or (group is not None and group.world)
    if isinstance(size, GroupNumber):
        if size.group.split and (in_world or _is_other(size.group, group)):
            message = (
                f"`{text}` has one part for each rank of the group of `{size.text}`, and {short} "
                f"runs in {'the group of all ranks' if in_world else 'another group'}: it fails "
                "where the numbers differ"
            )
            _record(state, call, "habit-argument", message)
    elif not in_world:
        node = call.arguments.named_nodes.get("group")
        named = state.unparse(node) if node is not None else ""
        of_some = group is not None and group.split
        if not of_some and (group is not None or _WORLD_NAME.search(named) or not named):
            return
        message = (
            f"`{text}` has one part for each rank of the job, and {short} runs in the group "
            f"`{named or 'passed to it'}`: use dist.get_world_size({named or 'group'})"
        )
        _record(state, call, "habit-argument", message, by_name=not of_some)


def _is_other(one: ProcessGroup, other: ProcessGroup | None) -> bool:
    """Return True if both are known and one of several groups of different kinds."""
    return (
        other is not None
        and other.split
        and bool(one.name and other.name)
        and one.name != other.name
    )


def _root_list(state: InterpreterState, call: LibraryCall, collective: CollectiveCall) -> str:
    """Return the message for a list that all ranks pass, or that no rank passes."""
    entry, frame = _ROOT_LISTS.get(collective.name), call.frame
    if (
        entry is None
        or frame.control
        or frame.exited
        or call.arguments.starred is not None
        or _selects_root(frame.tree, call, collective.name)
    ):
        return ""
    name, root, refused = entry
    position = collective.parameters.index(name)
    value, node = call.arguments.get(position, name), call.arguments.node(position, name)
    if value is None or (isinstance(node, ast.Constant) and node.value is None):
        calls = re.compile(rf"(?<!\w){collective.name}\(")  # another one may be that of the root
        texts = [module.text for module in state.modules.values() if not module.is_test]
        if sum(len(calls.findall(text)) for text in texts) > 1:
            return ""
        return f"no rank passes {name}: {collective.name} raises on {root}, and the others wait"
    if refused and node is not None and _is_list(value):
        return (
            f"all ranks pass {name}=`{state.unparse(node)}`: {collective.name} raises on all but "
            f"{root}, which waits; pass None there"
        )
    return ""


def _is_list(value: Value) -> bool:
    """Return True for a list that has elements on all ranks."""
    if value.absent or value.length or value.content or value.const is not NO_CONSTANT:
        return False
    if NONE_OBJECT in value.objects or UNKNOWN_OBJECT in value.objects:
        return False
    pieces = any(each.name == "pieces" for each in value.objects_of(LibraryInstance))
    return bool(value.items or value.objects_of(OnePerRank) or pieces)


def _selects_root(tree: ast.AST, call: LibraryCall, name: str) -> bool:
    """Return True if the function may tell the root from other ranks, or calls this twice."""
    nodes = walk(tree)
    others = [
        each
        for each in nodes
        if isinstance(each, ast.Call) and last_name(each.func) == name and each is not call.node
    ]
    tests = [each.test for each in nodes if isinstance(each, (ast.If, ast.IfExp, ast.While))]
    texts = [ast.unparse(test) for test in tests]
    around = any(
        isinstance(each, ast.If) and any(part is call.node for part in walk(each)) for each in nodes
    )
    return bool(others) or around or any(map(_SELECTS_RANK.search, texts))


def _equal_sizes(call: LibraryCall, collective: CollectiveCall) -> str:
    """Return the message for an output of the size of the input."""
    names = _SIZES.get(collective.name)
    if names is None:
        return ""
    nodes = [call.arguments.node(collective.parameters.index(name), name) for name in names]
    if None in nodes:
        return ""
    texts = [dotted_name(node) for node in nodes if node is not None]
    for one, other in (texts, texts[::-1]):
        values = [
            each.value
            for each in walk(call.frame.tree)
            if isinstance(each, ast.Assign) and [dotted_name(t) for t in each.targets] == [one]
        ]
        match values:
            case [ast.Call(func=func, args=[like])] if last_name(func) in _LIKE:
                if dotted_name(like) == other and other:
                    return (
                        f"`{texts[0]}` has the size of `{texts[1]}`: {collective.name} needs as "
                        "many times that size as there are ranks in the group"
                    )
            case _:
                pass
    return ""
