"""What a call of a collective does: it is entered, by the ranks of its group, and what it makes agree is agreed."""

from __future__ import annotations

import ast

from msgspec.structs import replace

from holdfast.facts.code import library
from holdfast.facts.code.arguments import Arguments, LibraryCall
from holdfast.facts.code.devices import settled
from holdfast.facts.code.effects import Group, Note, Op
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.groups import members_of
from holdfast.facts.code.library import Collective
from holdfast.facts.code.state import State
from holdfast.facts.code.things import BATCH, COUNT, Lib, Made, Partial, Ranks
from holdfast.facts.code.values import MISSING, SAME, Kind, Value, by_rank, kinds_of

#: What ``get_world_size()`` gives, and ``range`` of it.
WORLD_SIZE, ALL_RANKS = Lib("#world_size"), Lib("#all_ranks")
#: What makes the members of a group a rank's own.
_NUMBERS = frozenset({Kind.RANK, Kind.LOCAL_RANK})


def collective(state: State, call: LibraryCall, what: Collective) -> Value:
    """Enter a collective."""
    given = call.given
    if given.says("use_local_synchronization", answer=True):
        return Value(things=(Ranks(world=False),))
    handed = _argument(given, what, "group") or given.named.get("process_group")
    group = group_of(handed)
    if what.kind in ("send", "recv"):
        name = "dst" if what.kind == "send" else "src"
        peer, which = given.node(1, name), given.get(1, name)
        said = state.text(peer) if peer is not None else ""
        shifted = which is not None and bool(kinds_of(which.content) & _NUMBERS)
        call.frame.note(Op(what.name, call.place, group, what.kind, peer=said, shifted=shifted))
        return SAME
    _note_differing(call, what, group)
    if what.kind == "init":
        limit = given.get(2, "timeout")
        own = given.rest is not None or (limit is not None and limit.const is not None)
        state.limits.add("own" if own else "default")
        call.frame.note(Note("init", call.place, settled(given)))
        return SAME
    first = given.node(0, what.parameters[0]) if what.parameters else None
    about = "grad" if isinstance(first, ast.Attribute) and first.attr == "grad" else ""
    if what.name == "new_group":
        about = _whom(state, call)
    made = [each for each in handed.things if isinstance(each, Ranks)] if handed is not None else []
    members = made[0].members if len(made) == 1 else ()
    asked_first = what.kind == "creation" and call.frame.lazy and not call.frame.writing("")
    if not asked_first:  # else all ranks have asked for it long ago, as a rule
        chosen = handed is not None and handed.const is not None
        op = Op(what.name, call.place, group, what.kind, peer=about, own=bool(made), members=members, chosen=chosen)
        call.frame.note(op)
    return _result(state, call, what)


def _result(state: State, call: LibraryCall, what: Collective) -> Value:
    if what.kind == "creation":
        ranks = call.given.get(0, "ranks")
        world = ranks is None or ranks.const is None or ALL_RANKS in ranks.things
        members = members_of(call.given.node(0, "ranks")) if what.name == "new_group" else ()
        return Value(things=(Ranks(world=world, members=members),))
    if what.agrees == "return":
        return Value(agreed=True)
    if what.agrees:
        _agree(state, call.frame, call.given.node(what.parameters.index(what.agrees), what.agrees))
    return Value(things=(Made("work"),)) if call.given.says("async_op", answer=True) else SAME


def _some_alone(frame: Frame) -> bool:
    """Only some ranks are here, by their numbers: what differs over all need not differ over these."""
    return bool(frame.control) and by_rank(frame.control)


def _argument(given: Arguments, what: Collective, name: str) -> Value | None:
    return given.get(what.parameters.index(name) if name in what.parameters else -1, name)


def _whom(state: State, call: LibraryCall) -> str:
    """Whom a group is made of, as it is written or called; noted where each rank says it for itself."""
    node, ranks = call.given.node(0, "ranks"), call.given.get(0, "ranks")
    if node is None or ranks is None or ranks.const is None:
        return ""
    alone = ranks.items is not None and len(ranks.items) == 1  # which needs nobody: torch counts calls, not members
    if ranks.content and kinds_of(ranks.content) <= _NUMBERS and not alone:
        call.frame.note(Note("ranks", call.place, state.text(node), ranks.content))
    return ", ".join(f"{cls.name}.{name}" for cls, name in ranks.homes[:1]) or state.text(node)


def _note_differing(call: LibraryCall, what: Collective, group: Group) -> None:
    """Arguments that all have to give alike, and do not."""
    if what.root and group is Group.WORLD:  # of a group that was handed in each may have its own
        root = _argument(call.given, what, what.root)
        if root is not None and root.content and not _some_alone(call.frame):
            call.frame.note(Note("root", call.place, f"{what.name}'s {what.root}", root.content))
    if what.shaped:
        value = _argument(call.given, what, what.shaped)
        length = tuple(each for each in value.length if each.kind is not Kind.NAMED) if value is not None else ()
        if length and (group is Group.WORLD or not by_rank(length)):
            call.frame.note(Note("shape", call.place, what.name, length))


def group_of(value: Value | None) -> Group:
    """Which ranks a ``group`` argument means."""
    if value is None or value.const is None:
        return Group.WORLD
    worlds = {each.world for each in value.things if isinstance(each, Ranks)}
    if worlds:
        return Group.WORLD if worlds == {True} else Group.SUB
    for each in value.things:
        name = each.name if isinstance(each, (Lib, Partial)) else ""
        if name.endswith("WORLD"):
            return Group.WORLD
        if name.endswith(library.SUB_GROUPS):
            return Group.SUB
    return Group.UNKNOWN


def _agree(state: State, frame: Frame, node: ast.expr | None) -> None:
    """What ``node`` names holds the same on all ranks from here on."""
    while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("data", "grad")):
        node = node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        old = state.evaluate(frame, node)
        things = tuple(each for each in old.things if each not in (BATCH, COUNT))
        alike = replace(old, content=(), length=(), order=(), inner=(), absent=(), things=things)
        state.store(frame, node, replace(alike, agreed=True, known=True, items=None, const=MISSING))
