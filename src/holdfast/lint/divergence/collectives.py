"""Model a call of a collective: record the operation and mark its result as agreed by all ranks."""

from __future__ import annotations

import ast
import re
from pathlib import PurePath

from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint import library
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import GroupScope, Marker, Operation
from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    UNIFORM,
    DictEntries,
    NumberTypes,
    TaintKind,
    TaintSource,
    Value,
    dict_of,
    is_rank_only,
    taint_kinds,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    ALL_RANKS,
    BATCH,
    COUNT,
    DeviceMesh,
    LibraryInstance,
    LibraryMethod,
    LibraryName,
    ProcessGroup,
    SummedOver,
    dict_entries,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall
from holdfast.lint.abstract_state.elements import HELD
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.function_summaries import ANY_CREATED
from holdfast.lint.abstract_state.mutations import store_mutation
from holdfast.lint.abstract_state.process_stamps import (
    process_sources,
    without_stamps,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.device_selection import group_device
from holdfast.lint.divergence.divided_sums import summed_over
from holdfast.lint.divergence.group_members import group_kind, literal_ranks
from holdfast.lint.divergence.operand_counts import record_operand_counts
from holdfast.lint.library import CollectiveCall
from holdfast.lint.sources.modules import last_name

#: Names of objects that stand for some of the ranks.
_SUBGROUP_NAME = re.compile(
    r"(?:^|_)(?:[dtpces]p|tensor|data|pipeline|expert|sub|node|local|intra|inter)(?:_|$)"
)
#: Calls that split the ranks into groups.
_SPLITTING = frozenset({"new_subgroups", "new_subgroups_by_enumeration"})
#: Parameters for the folder of a sharded checkpoint, and values that are a process's own.
_FOLDERS = frozenset(
    {"checkpoint_id", "path", "filepath", "save_dir", "tag", "output_dir", "checkpoint_dir"}
)
#: The argument with the members of the groups that a call creates.
_MEMBERS = {"new_group": (0, "ranks"), "DeviceMesh": (1, "mesh")}


#: Methods of a tensor that return another view of it.
_VIEWS = frozenset({"view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "detach"})


def enter_collective(
    state: InterpreterState,
    call: LibraryCall,
    collective: CollectiveCall,
    *,
    may_not_wait: bool = False,
) -> Value:
    """Record a collective and return its result."""
    arguments = call.arguments
    if arguments.is_constant("use_local_synchronization", answer=True):
        return Value(objects=(ProcessGroup(world=False),))
    group_argument = _collective_argument(arguments, collective, "group") or arguments.named.get(
        "process_group"
    )
    group = group_scope(group_argument)
    if collective.kind in ("send", "recv"):
        return _record_message(state, call, collective, group)
    _record_differing_arguments(call, collective, group)
    record_operand_counts(state, call, collective, group_argument)
    if collective.kind == "sharded":
        _record_own_folder(state, call, collective)
    if collective.kind == "init":
        limit = arguments.get(2, "timeout")
        has_limit = limit is not None and limit.const is not None
        state.group_timeouts.add("own" if has_limit or arguments.starred is not None else "default")
        call.frame.add_effect(Marker("init", call.location, group_device(arguments)))
        return UNIFORM
    first = arguments.node(0, collective.parameters[0]) if collective.parameters else None
    reduced_or_members = "grad" if isinstance(first, ast.Attribute) and first.attr == "grad" else ""
    if collective.name in _MEMBERS:
        reduced_or_members = _group_members(state, call, *_MEMBERS[collective.name])
    groups = group_argument.objects_of(ProcessGroup) if group_argument is not None else []
    members = groups[0].members if len(groups) == 1 else ()
    if not _exists_already(state, call, collective):
        names_group = group_argument is not None and group_argument.const is not None
        op = Operation(
            collective.name,
            call.location,
            group,
            collective.kind,
            may_not_wait,
            peer=reduced_or_members,
            own_group=bool(groups),
            members=members,
            names_group=names_group,
        )
        call.frame.add_effect(op)
        if collective.kind == "creation" and not call.frame.control:
            state.add_creation(call.location)
    return _collective_result(state, call, collective)


def _exists_already(state: InterpreterState, call: LibraryCall, collective: CollectiveCall) -> bool:
    """Return True for a group made on first use, if all ranks get here, at this time or another."""
    frame, key = call.frame, ("<first use>", f"{call.frame.file}:{call.node.lineno}")
    if collective.kind == "creation":
        frame.used_names.add(ANY_CREATED)
    if collective.kind != "creation" or not frame.lazily_created:
        return False
    if not frame.control and key not in state.first_uses:
        state.first_uses.add(key)
        state.summaries.record_write(*key)
    state.summaries.record_read(*key)
    return key in state.first_uses or not frame.write_control("")


def _record_message(
    state: InterpreterState, call: LibraryCall, collective: CollectiveCall, group: GroupScope
) -> Value:
    """Record a message to or from another rank."""
    name = "dst" if collective.kind == "send" else "src"
    node, peer = call.arguments.node(1, name), call.arguments.get(1, name)
    text = state.unparse(node) if node is not None else ""
    varies = peer is not None and bool(taint_kinds(peer.content) & RANK_KINDS)
    kind = collective.kind
    call.frame.add_effect(
        Operation(collective.name, call.location, group, kind, peer=text, peer_varies=varies)
    )
    return UNIFORM


def _collective_result(
    state: InterpreterState, call: LibraryCall, collective: CollectiveCall
) -> Value:
    if collective.kind == "creation":
        ranks = call.arguments.get(0, "ranks")
        world = ranks is None or ranks.const is None or ALL_RANKS in ranks.objects
        members = (
            literal_ranks(call.arguments.node(0, "ranks")) if collective.name == "new_group" else ()
        )
        name, split = "", False
        if collective.name in _SPLITTING:
            name, split = f"{call.location.file}:{call.location.line}", True
        elif collective.name == "new_group" and not world:
            name, split = group_kind(call, ranks)
        return Value(objects=(ProcessGroup(world, members, name, split),))
    if collective.agrees == "return":
        return Value(agreed=True)
    if collective.agrees:
        _mark_agreed(
            state,
            call.frame,
            call.arguments.node(collective.parameters.index(collective.agrees), collective.agrees),
            call,
        )
    if collective.name == "reduce" and not call.frame.control and not call.frame.exited:
        _mark_reduced(state, call)
    if call.arguments.is_constant("async_op", answer=True):
        return Value(objects=(LibraryInstance("work"),))
    return Value(agreed=True) if call.name.startswith("accelerate.") else UNIFORM


def _only_some_ranks(frame: Frame) -> bool:
    """Return True if only some ranks get here, selected by their rank."""
    return bool(frame.control) and is_rank_only(frame.control)


def _collective_argument(
    arguments: Arguments, collective: CollectiveCall, name: str
) -> Value | None:
    return arguments.get(
        collective.parameters.index(name) if name in collective.parameters else -1, name
    )


def _group_members(state: InterpreterState, call: LibraryCall, position: int, name: str) -> str:
    """Return the members of a new group as text; record a marker if they depend on the rank."""
    node, ranks = call.arguments.node(position, name), call.arguments.get(position, name)
    if node is None or ranks is None or ranks.const is None:
        return ""
    # a group of one rank needs no others: torch counts calls, not members
    is_single = ranks.items is not None and len(ranks.items) == 1
    varies = bool(ranks.content) and taint_kinds(ranks.content) <= RANK_KINDS and not is_single
    if varies and not _is_created_for_all(state, call, varies=True):
        call.frame.add_effect(Marker("ranks", call.location, state.unparse(node), ranks.content))
    elif not varies:
        _is_created_for_all(state, call, varies=False)
    return ", ".join(f"{cls.name}.{name}" for cls, name in ranks.stored_in[:1]) or state.unparse(
        node
    )


def _is_created_for_all(state: InterpreterState, call: LibraryCall, *, varies: bool) -> bool:
    """Return True for a table of groups that all ranks fill in one order, at this time or another.

    A rank then finds its own group in the table: ``if key not in groups: groups[key] = new_group``.
    """
    if not call.frame.lazily_created:
        return False
    key = ("<group table>", f"{call.frame.file}:{call.node.lineno}")
    if varies:
        state.summaries.record_read(*key)
    elif key not in state.first_uses:
        state.first_uses.add(key)
        state.summaries.record_write(*key)
    return key in state.first_uses


def _record_own_folder(
    state: InterpreterState, call: LibraryCall, collective: CollectiveCall
) -> None:
    """Record a sharded checkpoint whose parts each rank writes to another folder."""
    if call.frame.scope.module.is_test or _only_some_ranks(call.frame):
        return
    for name in _FOLDERS.intersection((*collective.parameters, *call.arguments.named)):
        path = _collective_argument(call.arguments, collective, name)
        own = process_sources(path) if path is not None and not path.agreed else ()
        if own:
            message = (
                f"each rank passes another {name} to {collective.name} at "
                f"{PurePath(call.location.file).name}:{call.location.line}, as it contains "
                f"`{own[0].text}`: the parts of one checkpoint end in several folders; broadcast "
                "that of rank 0"
            )
            at = _origin(call, own[0])
            kind = "habit-name"
            divergence = Divergence(
                kind, at, call.location, call.name, own, detail=message, by_name=True
            )
            state.summaries.current.divergences.setdefault((kind, at), divergence)
            return


def _origin(call: LibraryCall, source: TaintSource) -> SourceLine:
    """Return where a name has to change: here, or where another function makes it."""
    tree, file = call.frame.tree, call.frame.file
    begin, end = getattr(tree, "lineno", 1), getattr(tree, "end_lineno", call.location.line)
    here = source.file == file and begin <= source.line <= end and not isinstance(tree, ast.Module)
    return call.location if here else SourceLine(source.file, source.line, "")


def _record_differing_arguments(
    call: LibraryCall, collective: CollectiveCall, group: GroupScope
) -> None:
    """Record arguments that must be equal on all ranks and are not."""
    if collective.root and group is GroupScope.WORLD:  # each sub-group may have its own root
        root = _collective_argument(call.arguments, collective, collective.root)
        if root is not None and root.content and not _only_some_ranks(call.frame):
            call.frame.add_effect(
                Marker(
                    "root", call.location, f"{collective.name}'s {collective.root}", root.content
                )
            )
    if collective.shaped:
        value = _collective_argument(call.arguments, collective, collective.shaped)
        length = without_kinds(value.length, {TaintKind.NAMED}) if value is not None else ()
        if collective.root == "src" and is_rank_only(length):
            length = ()  # what the root has and a placeholder on the others, made to fit
        if length and (group is GroupScope.WORLD or not is_rank_only(length)):
            call.frame.add_effect(Marker("shape", call.location, collective.name, length))
        for numbers in value.objects_of(NumberTypes) if value is not None else ():
            name = collective.name
            call.frame.add_effect(Marker("type", call.location, name, numbers.sources))


def group_scope(value: Value | None) -> GroupScope:
    """Return which ranks a ``group`` argument includes."""
    if value is None or value.const is None:
        return GroupScope.WORLD
    worlds = {candidate.world for candidate in value.objects if isinstance(candidate, ProcessGroup)}
    worlds |= {mesh.whole and len(mesh.names) == 1 for mesh in value.objects_of(DeviceMesh)}
    if worlds:
        return GroupScope.WORLD if worlds == {True} else GroupScope.SUB
    for obj in value.objects:
        name = obj.name if isinstance(obj, (LibraryName, LibraryMethod)) else ""
        if name.endswith("WORLD"):
            return GroupScope.WORLD
        if name.endswith(library.SUB_GROUPS):
            return GroupScope.SUB
    return GroupScope.UNKNOWN


def _mark_reduced(state: InterpreterState, call: LibraryCall) -> None:
    """Mark the tensor of a reduce: only the root has the result."""
    node, old = call.arguments.node(0, "tensor"), call.arguments.get(0, "tensor")
    if isinstance(node, (ast.Name, ast.Attribute)) and old is not None:
        content = state.taint_source(call.frame, TaintKind.DATA, call.node)
        store_mutation(state, call.frame, node, replace(old, content=content, agreed=False))


def _mark_agreed(
    state: InterpreterState, frame: Frame, node: ast.expr | None, call: LibraryCall
) -> None:
    """Mark what ``node`` names, or a loop takes its elements from, as uniform from here on."""
    keys: list[ast.expr] = []
    while True:
        match node:
            case ast.Subscript(value=inner, slice=key):
                keys.append(key)
            case ast.Attribute(value=inner, attr="data" | "grad"):
                pass
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _VIEWS:
                pass
            case _:
                break
        node = inner
    if isinstance(node, (ast.List, ast.Tuple)):  # the root sends the variables themselves
        for element in node.elts:
            _mark_agreed(state, frame, element, call)
    if isinstance(node, (ast.Name, ast.Attribute)):
        old = state.evaluate(frame, node)
        summed = summed_over(call, call.arguments.get(2, "group"), old)
        marks = () if summed is None else (summed,)
        entry = state.evaluate(frame, keys[0]).const if len(keys) == 1 else None
        entries = dict_entries(old)
        if entries is not None and isinstance(entry, str) and entry in entries:
            changed = dict_of(entries | {entry: _as_agreed(entries[entry], marks)})
            objects = tuple(changed if isinstance(obj, DictEntries) else obj for obj in old.objects)
            store_mutation(state, frame, node, replace(old, objects=objects))
        else:
            store_mutation(state, frame, node, _as_agreed(old, marks))
        container = frame.elements.pop(node.id, None) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Name) and container is not None:
            _mark_agreed(state, frame, container, call)
            frame.elements[node.id] = container


def _as_agreed(value: Value, marks: tuple[SummedOver, ...] = ()) -> Value:
    """Return a value that a collective made equal on all ranks, with all that it contains."""
    value = without_stamps(value)
    kept = [
        dict_of({name: _as_agreed(entry, marks) for name, entry in obj.entries.items()})
        if isinstance(obj, DictEntries)
        else obj
        for obj in value.objects
        if obj not in (BATCH, COUNT)
        and not isinstance(obj, SummedOver)
        and getattr(obj, "name", "") != HELD
    ]
    return Value(
        objects=(*kept, *marks),
        stored_in=value.stored_in,
        ragged=value.ragged,
        agreed=True,
    )


def is_of_subgroup(call: LibraryCall) -> bool:
    """Return True for a barrier of an unknown object whose name says that it is of some ranks."""
    return call.name == "barrier" and (
        call.receiver_node is None or bool(_SUBGROUP_NAME.search(last_name(call.receiver_node)))
    )
