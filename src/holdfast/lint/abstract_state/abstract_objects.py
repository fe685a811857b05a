"""What a value may be: a function, class or instance of the program, or a library object."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.lint.abstract_domain.values import (
    RANK_OR_SELECTED,
    DictEntries,
    OpenDict,
    SitedObject,
    Taint,
    TaintKind,
    Value,
    as_selection,
    join_values,
    taint_kinds,
)
from holdfast.lint.abstract_state.process_stamps import ProcessStamp, stamps_of
from holdfast.lint.sources.modules import Class, Function, Module


@dataclass(eq=False, slots=True)
class VariableScope:
    """The variables of a function or module; ``outer`` is the enclosing scope."""

    names: dict[str, Value]
    module: Module
    outer: VariableScope | None = None


class FunctionObject(msgspec.Struct, frozen=True, eq=False):
    """A function of the program; ``bound`` is a method's instance, ``scope`` a closure's scope.

    ``guard`` is the taint of a decorator such as ``@rank_zero_only``: only some ranks enter it.
    """

    function: Function
    scope: VariableScope | None = None
    bound: Value | None = None
    guard: Taint = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionObject):
            return False
        same = (
            other.function is self.function
            and other.scope is self.scope
            and other.guard == self.guard
        )
        return same and other.bound == self.bound

    def __hash__(self) -> int:
        return hash((id(self.function), id(self.scope)))


class GuardedCallable(msgspec.Struct, frozen=True, eq=False):
    """A callable with bound arguments (``partial``) or a ``guard`` (only some ranks call it)."""

    target: Any
    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()
    guard: Taint = ()

    def __eq__(self, other: object) -> bool:
        if (
            not isinstance(other, GuardedCallable)
            or other.target != self.target
            or other.guard != self.guard
        ):
            return False
        return other.positional == self.positional and other.named == self.named

    def __hash__(self) -> int:
        return hash(
            (type(self.target), len(self.positional), tuple(name for name, _ in self.named))
        )


class ClassObject(msgspec.Struct, frozen=True):
    """A class of the program."""

    cls: Class


class Instance(SitedObject, frozen=True):
    """An instance of a class of the program, created at one place, or anywhere (``site`` 0)."""

    cls: Class


def instance_of(cls: Class) -> Value:
    """Return an instance of a class of the program."""
    return Value(objects=(Instance(cls),))


def bound_method(method: Function, *instances: Instance) -> FunctionObject:
    """Return a method bound to an instance, which is one of these."""
    return FunctionObject(method, None, Value(objects=instances))


def group_instances(objects: Iterable[Any]) -> Iterator[tuple[Any, tuple[Instance, ...]]]:
    """Yield the objects, those of one class together: the first, and all of them."""
    objects = tuple(objects)
    if len(objects) == 1:
        yield objects[0], objects if isinstance(objects[0], Instance) else ()
        return
    groups: dict[Any, list[Any]] = {}
    for obj in objects:
        groups.setdefault(obj.cls if isinstance(obj, Instance) else id(obj), []).append(obj)
    for group in groups.values():
        yield group[0], tuple(group) if isinstance(group[0], Instance) else ()


class ModuleObject(msgspec.Struct, frozen=True):
    """A module of the program."""

    module: Module


class LibraryName(msgspec.Struct, frozen=True):
    """The name of a library module, class, function or constant."""

    name: str


class LibraryInstance(msgspec.Struct, frozen=True):
    """An instance of a library class, named as in :mod:`holdfast.lint.library`.

    ``wrapped`` is the wrapped model, or the sampler of a loader. The part after a colon qualifies
    the class: ``wrapped:fsdp``, ``output:ddp``.
    """

    name: str
    wrapped: Value | None = None


class ProcessGroup(msgspec.Struct, frozen=True):
    """A process group created by the program: of all ranks (``world``), or of ``members``.

    ``name`` is a dimension of a mesh or the place of its creation, empty if several kinds of groups
    are created there. ``split``: one of several groups of this kind, so that a rank's position in
    it differs from its number in the job.
    """

    world: bool
    members: tuple[int, ...] = ()
    name: str = ""
    split: bool = False


class GroupNumber(msgspec.Struct, frozen=True):
    """A number that refers to a group.

    ``kind``: ``position`` (of a rank in the group), ``size``, or ``positions`` (all of them).
    ``text`` is the source text of the group. ``offset`` was added to the rank's own position;
    ``wraps``: modulo the size.
    """

    kind: str
    group: ProcessGroup
    text: str = ""
    offset: int = 0
    wraps: bool = False


#: The result of ``get_world_size()``, and of ``range`` over it.
WORLD_SIZE, ALL_RANKS = LibraryName("#world_size"), LibraryName("#all_ranks")
#: The number of ranks of a host.
LOCAL_SIZE = LibraryName("#local_size")


class OnePerRank(msgspec.Struct, frozen=True):
    """A list or tensor with a part for each rank: ``size`` is their number, or None if unknown.

    It is :data:`WORLD_SIZE`, or a :class:`GroupNumber`. ``repeated``: all parts of the list are
    one object.
    """

    size: Any
    repeated: bool = False


class SummedOver(msgspec.Struct, frozen=True):
    """A tensor that one all_reduce summed over the ranks of a group; None: over all ranks.

    ``averaged``: it was divided by their number.
    """

    group: ProcessGroup | None
    averaged: bool = False


class Multiple(msgspec.Struct, frozen=True):
    """A number that another one divides, by its source text: ``count // size * size``."""

    of: str


class DeviceMesh(msgspec.Struct, frozen=True):
    """A device mesh or a part of it, by the names of its dimensions; ``()`` if they are unknown.

    ``origin`` is the place of its creation, ``whole``: it contains all ranks. ``split``: there are
    several groups along each dimension, unless that one contains all ranks.
    """

    origin: str
    names: tuple[str, ...]
    whole: bool = True
    split: bool = True


class RankTest(msgspec.Struct, frozen=True):
    """The result of comparing the rank with one number or several; ``operator`` is its name."""

    operator: str
    against: Any

    def passes(self, rank: int) -> bool:
        """Return True if the test holds for this rank."""
        return RANK_COMPARISONS[self.operator](rank, self.against)


#: Comparisons of the rank, by operator name.
RANK_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "In": lambda rank, ranks: rank in ranks,
    "NotIn": lambda rank, ranks: rank not in ranks,
}


class TupleElements(msgspec.Struct, frozen=True, eq=False):
    """An iterable whose elements are tuples: ``zip``, a generator of tuples.

    ``signature`` identifies them in a context, once it is known.
    """

    items: tuple[Value, ...]
    signature: Hashable = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TupleElements) and other.items == self.items

    def __hash__(self) -> int:
        return hash((TupleElements, len(self.items)))


def join_rows(over: Value) -> Value | None:
    """Return the joined element of an iterable of tuples; None for other iterables."""
    rows = [Value(items=obj.items) for obj in over.objects if isinstance(obj, TupleElements)]
    joined = join_values(rows) if rows else None
    return joined if joined is not None and joined.items else None


class SubmittedTask(msgspec.Struct, frozen=True):
    """A task of a thread pool, with the path of effects that it executes."""

    path: tuple[Any, ...]


class LibraryMethod(msgspec.Struct, frozen=True, eq=False):
    """A method, not called yet, of an object that is no instance of a program class.

    ``owner`` is the library instance that ``receiver`` may be; None if unknown.
    """

    owner: LibraryInstance | None
    name: str
    receiver: Value


def dict_entries(value: Value) -> dict[str, Value] | None:
    """Return the known entries of a dict by key; None if it is not known to be one dict."""
    entries = [obj.entries for obj in value.objects_of(DictEntries)]
    return entries[0] if len(entries) == 1 and not value.objects_of(OpenDict) else None


def open_entry(value: Value, key: str) -> tuple[Value | None, Value]:
    """Return the entry of a dict of which only some are known, and what holds of the others.

    The entry is None if it is not known, and other values are returned unchanged.
    """
    for obj in value.objects_of(OpenDict):
        return obj.entries.get(key), obj.rest
    return None, value


#: The rank that the launcher assigns: differs between ranks, and is set and >= 0 on all or none.
LAUNCHER_RANK = LibraryInstance("launched")


#: The name of an object's ``__dict__``.
ATTRIBUTES = "attributes"
#: Marks instances as elements of a container, which is the value itself.
CONTAINED = "contained"
#: Marks what is iterated a number of times that is the same on all ranks, however long it is.
BOUNDED = "bounded"


def mark_contained(objects: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the objects in a container, marked if an instance could be taken for the container."""
    marked = any(isinstance(obj, Instance) for obj in objects) and CONTAINED not in objects
    return (CONTAINED, *objects) if marked else objects


#: A tensor of fixed size: assignments to its elements do not change its length.
SIZED_TENSOR = LibraryInstance("array")
#: The name of a progress bar that only some ranks show; ``wrapped`` has the reason.
PROGRESS_BAR = "progress bar"


#: Text that contains the rank.
RANK_TEXT = LibraryInstance("named")
#: A batch of a loader whose sampler shards the data, or something derived from it.
BATCH = LibraryInstance("batch")
#: A parameter of which an FSDP model has only this rank's shard.
SHARD = LibraryInstance("shard")
#: A model that is sharded if the program configures it so.
CONFIGURED_MODEL = LibraryInstance("wrapped:configured")
#: The number of elements in a batch or in part of it.
COUNT = LibraryInstance("count")
#: The number of extra iterations a rank needs to reach an agreed count.
PADDING = LibraryInstance("padding")
#: A list truncated to a multiple of the number of ranks.
TRIMMED = LibraryInstance("trimmed")
#: A boolean mask over elements.
MASK = LibraryInstance("mask")
#: A data set of which a library gave each rank its share.
RANK_SHARE = LibraryInstance("rank share")
#: The size of a data set of which the rank's loader has a share.
WHOLE_SIZE = LibraryInstance("whole size")
#: The state of a generator of random numbers in this process.
RANDOM_STATE = LibraryInstance("random state")


def as_text(value: Value, objects: tuple[Any, ...] = ()) -> Value:
    """Return the value as text: with the rank in it, it is a rank-specific name."""
    has_rank = bool(taint_kinds(value.content) & RANK_OR_SELECTED)
    content = tuple(
        source for source in as_selection(value.content) if source.kind is not TaintKind.DATA
    )
    stamps = stamps_of((value,)) or tuple(obj for obj in objects if isinstance(obj, ProcessStamp))
    return msgspec.structs.replace(
        value, content=content, objects=((RANK_TEXT,) if has_rank else objects[:1]) + stamps[:1]
    )


def bind_method(obj: Any, instance: Value) -> Any:
    """Return a function bound to an instance; other objects unchanged."""
    if isinstance(obj, FunctionObject) and obj.bound is None:
        return msgspec.structs.replace(obj, bound=instance)
    return obj


def is_callable(obj: Any) -> bool:
    """Return True for a known function, method or class."""
    return isinstance(obj, (FunctionObject, GuardedCallable, LibraryName, ClassObject)) or (
        isinstance(obj, LibraryMethod) and obj.owner is not None
    )


def guard_callables(value: Value, guard: Taint) -> Value:
    """Return the callables of a value, guarded: the result of ``run_on_main(function)``."""
    objects: list[Any] = []
    for obj in value.objects:
        if isinstance(obj, FunctionObject):
            objects.append(msgspec.structs.replace(obj, guard=guard))
        elif is_callable(obj):
            objects.append(GuardedCallable(obj, guard=guard))
    return Value(objects=tuple(objects), known=False)


def model_outputs(values: Iterable[Value]) -> tuple[LibraryInstance, ...]:
    """Return the first output of a wrapped model: its loss has a distributed backward."""
    instances = (
        obj for value in values for obj in value.objects if isinstance(obj, LibraryInstance)
    )
    return tuple(item for item in instances if item.name.startswith("output:"))[:1]


def operand_marks(values: Iterable[Value]) -> tuple[LibraryInstance, ...]:
    """Return what the result of an operator keeps of its operands: a model's output or a mark.

    A sum with a batch, or with the number of its elements, depends on the rank's data.
    """
    instances = (
        obj for value in values for obj in value.objects if isinstance(obj, LibraryInstance)
    )
    return tuple(
        obj for obj in instances if obj.name.startswith("output:") or obj in (BATCH, RANK_TEXT)
    )[:1]


def library_class_names(value: Value | None) -> list[str]:
    """Return the names of the library classes of which the value may be an instance."""
    return [obj.name for obj in value.objects_of(LibraryInstance)] if value is not None else []


def reuse_methods(old: Value, new: Value) -> Value:
    """Return the new value with methods of the old one in place of equal ones.

    Methods have no equality, and each run creates its own.
    """
    known = {_method_key(obj): obj for obj in old.objects if isinstance(obj, LibraryMethod)}
    if not known or not any(isinstance(obj, LibraryMethod) for obj in new.objects):
        return new
    objects = (
        known.get(_method_key(obj), obj) if isinstance(obj, LibraryMethod) else obj
        for obj in new.objects
    )
    return msgspec.structs.replace(new, objects=tuple(dict.fromkeys(objects)))


def _method_key(method: LibraryMethod) -> tuple[Any, ...]:
    receiver = method.receiver
    kinds = [taint_kinds(part) for part in (receiver.content, receiver.length, receiver.absent)]
    return (method.owner, method.name, receiver.agreed, receiver.known, *kinds)
