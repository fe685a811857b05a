"""Find ranks of a group where torch expects ranks of the job, and the reverse.

torch 2.13 distributed_c10d.py: ``src``, ``dst`` and ``peer`` are ranks of the job, also if a group
is passed; ``group_src``, ``group_dst`` and ``group_peer`` are positions in the group.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import permutations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import NO_CONSTANT, Value
from holdfast.lint.abstract_state.abstract_objects import (
    LAUNCHER_RANK,
    WORLD_SIZE,
    GroupNumber,
    ProcessGroup,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.patterns.scopes import walk
from holdfast.lint.sources.modules import last_name

_HOME = "torch.distributed."
#: Arguments with the rank of another process: position, name, and position of the group.
_PEERS = {
    "send": (1, "dst", 2), "isend": (1, "dst", 2), "recv": (1, "src", 2), "irecv": (1, "src", 2),
    "P2POp": (2, "peer", 3), "broadcast": (1, "src", 2), "broadcast_object_list": (1, "src", 2),
    "reduce": (1, "dst", 3), "gather": (2, "dst", 3), "gather_object": (2, "dst", 3),
    "scatter": (2, "src", 3), "scatter_object_list": (2, "src", 3),
}  # fmt: skip
#: Calls that name one other process and not the root of a collective.
#: The group of all ranks, in which a position is a rank of the job.
_ALL_RANKS = ProcessGroup(world=True)
_PEER_NAMES = frozenset({"src", "dst", "peer", "group_src", "group_dst", "group_peer"})
_SENDS = frozenset({"send", "isend"})
_RECEIVES = frozenset({"recv", "irecv"})
#: A test that may select the ranks which have such a neighbour.
_SELECTS_RANK = re.compile(r"rank|size|stage|first|last|next|prev|src|dst|peer", re.IGNORECASE)
_MESSAGES = frozenset({"send", "isend", "recv", "irecv", "P2POp"})


def only_group(value: Value | None) -> ProcessGroup | None:
    """Return the group that a value is, apart from None; None if it is not known."""
    groups = value.objects_of(ProcessGroup) if value is not None else []
    return groups[0] if len(groups) == 1 else None


def group_number(state: InterpreterState, call: LibraryCall, kind: str) -> GroupNumber | None:
    """Return the number that ``get_rank(group)`` or ``get_world_size(group)`` returns."""
    group = only_group(call.arguments.get(0, "group"))
    node = call.arguments.node(0, "group")
    if group is None or group.world:
        return None
    return GroupNumber(kind, group, state.unparse(node) if node is not None else "")


def single_number(value: Value | None, kind: str) -> GroupNumber | None:
    """Return the number of this kind that a value is; None if it may be another one."""
    numbers = value.objects_of(GroupNumber) if value is not None else []
    if len(numbers) != 1 or value is None or len(value.objects) != 1:
        return None
    return numbers[0] if numbers[0].kind == kind else None


def combined_number(operator: ast.operator, left: Value, right: Value) -> GroupNumber | None:
    """Return the position that ``rank + 1``, ``(rank - 1) % size`` or ``size - 1`` is."""
    number = single_number(left, "position") or _job_position(left)
    step = right.const
    if isinstance(operator, (ast.Add, ast.Sub)):
        if number is None and isinstance(operator, ast.Add):
            number = single_number(right, "position") or _job_position(right)
            step = left.const
        if type(step) is int:
            step = -step if isinstance(operator, ast.Sub) else step
            if number is not None:
                return replace(number, offset=number.offset + step)
            size = single_number(left, "size")
            return replace(size, kind="position") if size is not None and step < 0 else None
        added = single_number(right, "size") or single_number(left, "size")
        if number is not None and isinstance(operator, ast.Add) and added is not None:
            return number  # ``rank - 1 + size``, which is then divided by the size
    if isinstance(operator, ast.Mod) and number is not None:
        divisor = single_number(right, "size") or WORLD_SIZE in right.objects or None
        return replace(number, wraps=True) if divisor is not None else None
    return None


def _job_position(value: Value) -> GroupNumber | None:
    """Return the rank of this process in the job as a position among all ranks."""
    return GroupNumber("position", _ALL_RANKS) if _is_job_rank(value) else None


def mark_compared_position(
    names: dict[str, Value], node: ast.Compare, values: Sequence[Value]
) -> None:
    """Mark a variable compared with a position in a group as one: ``if group_rank == owner``."""
    if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return
    compared = (node.left, node.comparators[0])
    for (one, variable), value in zip(permutations(values), reversed(compared), strict=True):
        number = single_number(one, "position")
        if number is None or not isinstance(value, ast.Name) or value.id not in names:
            continue
        if not variable.objects and variable.const is NO_CONSTANT:
            marked = replace(number, offset=0, wraps=False)
            names[value.id] = replace(variable, objects=(marked,))


def record_group_numbers(state: InterpreterState, call: LibraryCall) -> None:
    """Record a call that gets a rank of a group for one of the job, or the reverse."""
    short = call.name.removeprefix(_HOME)
    if not call.name.startswith(_HOME):
        return
    if short in _PEERS:
        position, name, group_at = _PEERS[short]
        if short in _MESSAGES:
            _record_neighbour(state, call, call.arguments.get(position, name))
        group_value = call.arguments.get(group_at, "group")
        message = (
            _position_as_peer(state, call, (position, name, group_at), only_group(group_value))
            or _rank_as_position(state, call, f"group_{name}", only_group(group_value))
            or _fixed_root(call, (position, name), only_group(group_value))
        )
    elif short in ("get_global_rank", "get_group_rank"):
        message = _converted_twice(state, call, short)
    else:
        return
    if message:
        at = call.location
        divergence = Divergence("group-rank", at, at, short, (), detail=message)
        state.summaries.current.divergences.setdefault(("group-rank", at), divergence)


def _position_as_peer(
    state: InterpreterState,
    call: LibraryCall,
    argument: tuple[int, str, int],
    group: ProcessGroup | None,
) -> str:
    """Return the message for a position in a group as a rank of the job; empty if there is none."""
    position, name, group_at = argument
    number = single_number(call.arguments.get(position, name), "position")
    node = call.arguments.node(position, name)
    if number is None or node is None or not number.group.split:
        return ""
    text, short = state.unparse(node), call.name.removeprefix(_HOME)
    passed = call.arguments.get(group_at, "group")
    if passed is None or passed.const is None:
        # a neighbour in the group, on the group of all ranks
        if short not in _MESSAGES or not number.offset or call.arguments.starred is not None:
            return ""
        return (
            f"`{text}` is a position in a group, and {name} of {short} is a rank of the whole job: "
            f"pass the group and group_{name}, or get_global_rank(group, {text})"
        )
    group_node = call.arguments.node(group_at, "group")
    group_text = state.unparse(group_node) if group_node is not None else ""
    if group is None or not group.split or not _is_same_group(number, group, group_text):
        return ""
    return (
        f"`{text}` is a position in the group, and {name} of {short} is a rank of the whole job: "
        f"use group_{name}={text}, or get_global_rank(group, {text})"
    )


def _record_neighbour(state: InterpreterState, call: LibraryCall, peer: Value | None) -> None:
    """Record a message to a neighbour that the last rank lacks, or that sends to another one."""
    number, frame = single_number(peer, "position"), call.frame
    if number is None or not number.offset or frame.control or frame.exited:
        return
    nodes = walk(frame.tree)
    tests = [node.test for node in nodes if isinstance(node, (ast.If, ast.IfExp, ast.While))]
    if any(_SELECTS_RANK.search(state.unparse(test)) for test in tests):
        return
    message = ""
    sent, received = _peer_texts(nodes, _SENDS), _peer_texts(nodes, _RECEIVES)
    parameters = set(frame.function.parameters) if frame.function is not None else set()
    if (sent | received) & parameters or any("." in text for text in sent | received):
        return  # callers decide which ranks get here
    if number.group.world and not number.wraps:
        if not (sent and received):
            return
        which = "last" if number.offset > 0 else "first"
        message = (
            f"the {which} rank has no rank {'after' if number.offset > 0 else 'before'} it: "
            "divide by the number of ranks, or leave that rank out"
        )
    elif number.wraps and len(sent) == 1 and sent == received:
        message = (
            f"all ranks send to `{min(sent)}` and receive from it too, while that rank sends to "
            "the one after it: receive from the neighbour on the other side"
        )
    if message and not frame.scope.module.is_test:
        at = call.location
        found = Divergence("habit-peer", at, at, call.name, (), detail=message)
        state.summaries.current.divergences.setdefault(("habit-peer", at), found)


def _peer_texts(nodes: Sequence[ast.AST], names: frozenset[str]) -> set[str]:
    """Return the peers of the messages of a function, as text."""
    found = set()
    for call in nodes:
        if not isinstance(call, ast.Call):
            continue
        name, position = last_name(call.func), 1
        if name == "P2POp" and call.args:
            name, position = last_name(call.args[0]), 2
        if name in names:
            at = [keyword.value for keyword in call.keywords if keyword.arg in _PEER_NAMES]
            found |= {ast.unparse(each) for each in (*call.args[position : position + 1], *at)}
    return found


def _fixed_root(call: LibraryCall, argument: tuple[int, str], group: ProcessGroup | None) -> str:
    """Return the message for one rank as the root of several groups, on all of their ranks."""
    position, name = argument
    root, short = call.arguments.get(position, name), call.name.removeprefix(_HOME)
    if short in _MESSAGES or call.frame.control or call.frame.exited or root is None:
        return ""
    if type(root.const) is not int or group is None or not group.split:
        return ""
    return (
        f"rank {root.const} is in one of these groups only, and {short} raises on the ranks of the "
        f"others: use group_{name}={root.const}, or get_global_rank(group, {root.const})"
    )


def _rank_as_position(
    state: InterpreterState, call: LibraryCall, name: str, group: ProcessGroup | None
) -> str:
    """Return the message for a rank of the job as a position in a group."""
    value, node = call.arguments.named.get(name), call.arguments.named_nodes.get(name)
    if value is None or node is None or group is None or not group.split:
        return ""
    if not _is_job_rank(value):
        return ""
    return (
        f"`{state.unparse(node)}` is a rank of the whole job, and {name} is a position in the "
        f"group: pass it as {name.removeprefix('group_')}"
    )


def _converted_twice(state: InterpreterState, call: LibraryCall, short: str) -> str:
    """Return the message for a conversion of what has been converted already."""
    group = only_group(call.arguments.get(0, "group"))
    name = "group_rank" if short == "get_global_rank" else "global_rank"
    value, node = call.arguments.get(1, name), call.arguments.node(1, name)
    if value is None or node is None or group is None or not group.split:
        return ""
    text = state.unparse(node)
    if short == "get_global_rank":
        return (
            f"`{text}` is a rank of the whole job already, and get_global_rank expects a position "
            "in the group"
            if _is_job_rank(value)
            else ""
        )
    number = single_number(value, "position")
    group_node = call.arguments.node(0, "group")
    group_text = state.unparse(group_node) if group_node is not None else ""
    if number is None or not number.group.split or not _is_same_group(number, group, group_text):
        return ""
    return (
        f"`{text}` is a position in the group already, and get_group_rank expects a rank of the "
        "whole job"
    )


def _is_job_rank(value: Value) -> bool:
    """Return True for the rank of this process in the job."""
    return value.objects == (LAUNCHER_RANK,) and all(
        "get_rank()" in source.text or "'RANK'" in source.text for source in value.content
    )


def _is_same_group(number: GroupNumber, group: ProcessGroup, text: str) -> bool:
    """Return True if a number is one of this group."""
    if number.group.name and group.name:
        return number.group.name == group.name
    return bool(text) and number.text == text
