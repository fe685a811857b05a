"""The effects of a path through the code: collectives, branches, loops, calls and exits in order.

Paths are compared by :func:`collective_sequence`: the same collectives on the same groups in the
same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.values import Taint


class GroupScope(StrEnum):
    """The ranks of a group: all, some, or unknown (a group that was passed in)."""

    WORLD = "world"
    SUB = "sub-group"
    UNKNOWN = "unknown"


class Operation(msgspec.Struct, frozen=True):
    """One collective, or a message between two ranks.

    ``kind``: ``collective``, ``creation`` (of a group), ``init``, ``forward`` or ``backward`` of a
    wrapped model, ``sharded`` (I/O of a sharded model), ``send``, ``recv``. ``may_not_wait``: DDP's
    forward, which waits for other ranks only at times, or I/O of a model that need not be sharded.
    ``peer`` is the source text of a message's other rank, or "grad" for a reduction of gradients.
    ``peer_varies``: the peer differs between ranks. ``own_group``: the program created the group,
    with these ``members`` if known. ``names_group``: the call names a group.
    """

    name: str
    location: SourceLine
    group: GroupScope = GroupScope.WORLD
    kind: str = "collective"
    may_not_wait: bool = False
    peer: str = ""
    peer_varies: bool = False
    own_group: bool = False
    members: tuple[int, ...] = ()
    names_group: bool = False


class Marker(msgspec.Struct, frozen=True):
    """An event that no rank waits in but whose order matters: a file, a variable, a sampler."""

    name: str
    location: SourceLine
    detail: str = ""
    control: Taint = ()


class FileAccess(Marker, frozen=True):
    """An access to the path ``detail``, as :mod:`~holdfast.lint.abstract_state.path_names` has it.

    ``name`` is one of :data:`FILE_ACCESSES`. ``own``: the path contains the rank, host or time;
    ``clocked``: the time. ``tolerant``: it succeeds if another rank was first.
    """

    own: bool = False
    clocked: bool = False
    tolerant: bool = False


#: Kinds of accesses to files and folders.
FILE_ACCESSES = frozenset({"makes", "writes", "extends", "reads", "lists", "tests", "removes"})
#: Collectives that match one another wherever they are entered.
BARRIERS = frozenset({"barrier", "monitored_barrier", "wait_for_everyone"})
#: The markers around a block in which ranks may take turns.
TURN_BEGINS, TURN_ENDS = "turn begins", "turn ends"


class ExitEffect(msgspec.Struct, frozen=True):
    """The end of a path: a statement, ``raise`` with its exception, or the end of the process.

    ``keyword`` is that of the statement, :data:`PROCESS_EXIT` if the process ends while the job
    goes on, or :data:`UNSHARED_EXIT` for any statement that only a single process reaches.
    """

    keyword: str
    location: SourceLine
    exception: str = ""


class Branch(msgspec.Struct, frozen=True):
    """A test and the effects of both sides, each including what follows if it was unfolded.

    ``yes_length`` and ``no_length`` count the effects of the branch body itself (-1: all).
    ``taint`` is why the answer differs between ranks, ``rank_test`` the comparison of the rank with
    numbers, ``agreed``: a collective computed the answer.
    """

    location: SourceLine
    text: str
    taint: Taint
    known: bool
    yes: tuple[Any, ...]
    no: tuple[Any, ...]
    yes_length: int = -1
    no_length: int = -1
    rank_test: Any = None
    agreed: bool = False

    def branch_body(self, side: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the effects of the branch body itself, without what follows it."""
        count = self.yes_length if side is self.yes else self.no_length
        return side if count < 0 else side[:count]


class LoopEffect(msgspec.Struct, frozen=True):
    """A loop with the taint of its iteration count and order; ``known``: no other cause.

    ``joined``: it is inside ``with model.join()``, which compensates for DDP's collectives only.
    """

    location: SourceLine
    text: str
    count_taint: Taint
    order_taint: Taint
    body: tuple[Any, ...]
    orelse: tuple[Any, ...] = ()
    known: bool = True
    joined: bool = False


class Try(msgspec.Struct, frozen=True):
    """A ``try`` with handlers (location, exception type, effects).

    ``fails_alike``: it only imports or gets something, which fails on all ranks or on none.
    """

    location: SourceLine
    body: tuple[Any, ...]
    handlers: tuple[tuple[SourceLine, str, tuple[Any, ...]], ...]
    final_body: tuple[Any, ...]
    fails_alike: bool = False


class EffectSummary(msgspec.Struct, frozen=True, eq=False):
    """The effects of a function, with derived facts that many callers need.

    ``sequence`` and ``world_sequence`` are its collective sequences, ``tags`` the names of its
    markers and kinds of its operations. ``raises``: an exception may leave it.
    """

    path: tuple[Any, ...]
    sequence: tuple[Hashable, ...]
    world_sequence: tuple[Hashable, ...]
    tags: frozenset[str]
    raises: bool

    @property
    def is_relevant(self) -> bool:
        """Return True if it has any effect or an exception may leave it."""
        return bool(self.tags) or self.raises


class FunctionCall(msgspec.Struct, frozen=True):
    """A call of a program function with its effects; ``forwards``: a call in a wrapper.

    ``paths`` are the paths passed for its parameters, if it accesses files.
    """

    name: str
    location: SourceLine
    callee: EffectSummary
    forwards: bool = False
    paths: tuple[tuple[str, str], ...] = ()


Effect = Operation | Marker | ExitEffect | Branch | LoopEffect | Try | FunctionCall
EffectPath = tuple[Effect, ...]
#: Keywords of exits that are no single statement.
PROCESS_EXIT, UNSHARED_EXIT = "exit", "single process"
#: Functions that end the process.
PROCESS_EXITS = frozenset({"sys.exit", "os._exit", "exit", "quit"})
#: The marker for a process that makes itself a job of its own: ``os.environ["WORLD_SIZE"] = "1"``.
SINGLE_JOB = "single job"
#: The marker for the block of a context manager.
YIELD_MARKER = "yield"
#: Maximum number of events to walk in one program, as nested calls multiply.
MAX_EVENTS = 100_000
#: Maximum length of a sequence; a hash replaces the rest, as nested calls double it.
_MAX_SEQUENCE = 1000


def collective_sequence(path: Sequence[Effect], *, rank_only: bool = False) -> tuple[Hashable, ...]:
    """Return the comparable collectives of a path; ``rank_only`` omits those of sub-groups."""
    parts: list[Hashable] = []
    for effect in path:
        match effect:
            case Operation(name=name, group=group, kind=kind):
                if kind not in ("send", "recv") and not (
                    rank_only and group is not GroupScope.WORLD
                ):
                    parts.append((name, group.value))
            case FunctionCall(callee=callee):
                parts.extend(callee.world_sequence if rank_only else callee.sequence)
            case Branch(yes=yes, no=no):
                parts.extend(
                    _branch_sequence(
                        collective_sequence(yes, rank_only=rank_only),
                        collective_sequence(no, rank_only=rank_only),
                    )
                )
            case LoopEffect(body=body, orelse=after):
                inner = collective_sequence(body, rank_only=rank_only)
                if inner:
                    parts.append(("loop", inner))
                parts.extend(collective_sequence(after, rank_only=rank_only))
            case Try(body=body, final_body=last):
                parts.extend(collective_sequence(body, rank_only=rank_only))
                parts.extend(collective_sequence(last, rank_only=rank_only))
            case ExitEffect():
                break
            case _:
                pass
    return _bound_sequence(tuple(parts))


def _bound_sequence(parts: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    if len(parts) <= _MAX_SEQUENCE:
        return parts
    return (*parts[:_MAX_SEQUENCE], ("more", hash(parts[_MAX_SEQUENCE:])))


def _branch_sequence(
    one: tuple[Hashable, ...], other: tuple[Hashable, ...]
) -> tuple[Hashable, ...]:
    """Return the sequence of a branch: a single one if both sides are equal."""
    return one if one == other else (("fork", frozenset((one, other))),)


def final_exit(path: Sequence[Effect]) -> ExitEffect | None:
    """Return the exit at which every continuation of a path ends; None if it continues."""
    for effect in path:
        if isinstance(effect, ExitEffect):
            return effect
        if isinstance(effect, Branch):
            yes_exit, no_exit = final_exit(effect.yes), final_exit(effect.no)
            if yes_exit is not None and no_exit is not None:
                return yes_exit
    return None


def unfold_early_exits(path: Sequence[Effect], depth: int = 0) -> EffectPath:
    """Move what follows a branch with an exit into the side that continues."""
    for at, effect in enumerate(path):
        if isinstance(effect, ExitEffect):
            return tuple(path[: at + 1])
        if isinstance(effect, Branch) and depth < 12:
            yes_exit, no_exit = final_exit(effect.yes), final_exit(effect.no)
            rest = tuple(path[at + 1 :])
            if (yes_exit is None) != (no_exit is None) and rest:
                yes = (
                    effect.yes
                    if yes_exit is not None
                    else (*effect.yes, *unfold_early_exits(rest, depth + 1))
                )
                no = (
                    effect.no
                    if no_exit is not None
                    else (*effect.no, *unfold_early_exits(rest, depth + 1))
                )
                owned = (
                    {"yes_length": len(effect.yes)}
                    if yes_exit is None
                    else {"no_length": len(effect.no)}
                )
                return (*path[:at], msgspec.structs.replace(effect, yes=yes, no=no, **owned))
    return tuple(path)


def _nested_effects(effect: Effect) -> EffectPath:
    """Return the effects nested in a branch, loop or ``try``, in source order."""
    match effect:
        case Branch(yes=yes, no=no):
            return (*yes, *no)
        case LoopEffect(body=body, orelse=after):
            return (*body, *after)
        case Try(body=body, handlers=handlers, final_body=last):
            return (*body, *(nested for _, _, handled in handlers for nested in handled), *last)
        case _:
            return ()


def iter_operations(
    path: Sequence[Effect], chain: tuple[SourceLine, ...] = ()
) -> Iterator[tuple[Operation, tuple[SourceLine, ...]]]:
    """Yield every operation of a path with its call chain, outermost first."""
    for effect in path:
        if isinstance(effect, Operation):
            yield effect, (*chain, effect.location)
        elif not isinstance(effect, FunctionCall):
            yield from iter_operations(_nested_effects(effect), chain)
        elif effect.callee.sequence:
            yield from iter_operations(effect.callee.path, (*chain, effect.location))


def iter_events(path: Sequence[Effect]) -> Iterator[Operation | Marker]:
    """Yield operations and markers in source order, at most ``MAX_EVENTS``."""
    return islice(_walk_events(path), MAX_EVENTS)


def _walk_events(path: Sequence[Effect]) -> Iterator[Operation | Marker]:
    # one stack, as nested generators would pass each event through every level
    stack = [iter(path)]
    while stack:
        for effect in stack[-1]:
            if isinstance(effect, (Operation, Marker)):
                yield effect
                continue
            if isinstance(effect, ExitEffect):
                continue
            if not isinstance(effect, FunctionCall):
                stack.append(iter(_nested_effects(effect)))
                break
            if effect.callee.tags:
                stack.append(iter(effect.callee.path))
                break
        else:
            stack.pop()


def summarize_path(path: Sequence[Effect]) -> EffectSummary:
    """Return the summary of a path."""
    unfolded = unfold_early_exits(path)
    tags: set[str] = set()
    raises = _collect_tags(unfolded, tags)
    return EffectSummary(
        unfolded,
        collective_sequence(unfolded),
        collective_sequence(unfolded, rank_only=True),
        frozenset(tags),
        raises,
    )


def _collect_tags(path: Sequence[Effect], tags: set[str]) -> bool:
    """Collect the tags; return True if something raises."""
    raises = False
    for effect in path:
        match effect:
            case Operation(kind=kind):
                tags.add(kind)
            case Marker(name=name):
                tags.add(name)
            case FunctionCall(callee=callee):
                tags |= callee.tags
                raises = raises or callee.raises
            case ExitEffect(keyword=keyword):
                raises = raises or keyword == "raise"
                if keyword == PROCESS_EXIT:
                    tags.add(keyword)
            case _:
                raises = _collect_tags(_nested_effects(effect), tags) or raises
    return raises


EMPTY_SUMMARY = summarize_path(())
