"""Attributes of objects by allocation site, and what is known of them at one point of the program.

An object of the program is identified by the call that creates it and by that call's flags. A read
of an object's attribute joins what was written to objects of its site, or to an object of unknown
origin. A test may need more: facts hold the value that an attribute or module variable has at one
point, are passed to called functions and returned by them, and hold after a branch if they hold on
both sides.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    HEAP,
    NO_CONSTANT,
    NO_FACTS,
    HeapFacts,
    Value,
    join_values,
    persistent_taint,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import ClassObject, Instance, ProcessGroup
from holdfast.lint.abstract_state.arguments import Arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.sources.modules import Class, Module, SymbolTable

#: Maximum number of sites per class; further objects are of unknown origin.
_MAX_SITES = 16
#: Facts about counters stay within these bounds.
_MAX_COUNT = 2
FactKey = tuple[Any, str]
_WORD = re.compile(r"[A-Za-z_]\w*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.\w+)+")
_TEST = re.compile(r"\b(?:if|elif|while|and|or|not|is)\b")
_STEP = re.compile(r"(\w+) ([+-])= 1\b")


class Heap:
    """The attributes of objects by site, and the names that facts are kept about.

    tested: names and dotted names that a test of the program reads
    counters: names that the program both increments and decrements by constants
    """

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._sites: dict[Class, dict[Hashable, int]] = defaultdict(dict)
        self._cells: dict[Instance, dict[str, Value]] = defaultdict(dict)
        self._defaults: dict[tuple[Class, str], Value] = {}
        self._assigned: dict[Class, frozenset[str]] = {}
        self.tested, self.counters = _tested_names(modules.values()), _counters(modules.values())

    def allocate(self, cls: Class, node: ast.AST, file: str, arguments: Arguments) -> Instance:
        """Return the instance that a call creates."""
        flags = tuple(map(_flag, arguments.all_values))
        key = file, getattr(node, "lineno", 0), getattr(node, "col_offset", 0), flags
        sites = self._sites[cls]
        if key not in sites and len(sites) >= _MAX_SITES:
            return Instance(cls)
        return Instance(cls, site=sites.setdefault(key, len(sites) + 1))

    def write(self, instance: Instance, name: str, value: Value) -> bool:
        """Join a value into an attribute of a site; return True if it changed."""
        cell = self._cells[instance]
        old = cell.get(name)
        new = value if old is None else join_values((old, value))
        if new == old:
            return False
        cell[name] = new
        return True

    def read(self, symbols: SymbolTable, instance: Instance, name: str) -> Value | None:
        """Return an attribute that every object of the site has; None if that is not known."""
        if not instance.site:
            return None
        own = self._cells[instance].get(name)
        owners = _with_bases(symbols, instance.cls)
        default = None
        if name in self._names_set(symbols, instance.cls):
            if own is None:
                return None
        else:
            default = next(filter(None, (self.default(owner, name) for owner in owners)), None)
            if default is None:
                return None
        others = [self._cells[Instance(owner)].get(name) for owner in owners]
        return join_values([value for value in (default, own, *others) if value is not None])

    def default(self, cls: Class, name: str) -> Value | None:
        """Return the value that the body of a class gives to an attribute."""
        return self._defaults.get((cls, name))

    def set_default(self, cls: Class, name: str, value: Value) -> None:
        """Record the value that the body of a class gives to an attribute."""
        self._defaults[cls, name] = value

    def attributes(self, instance: Instance) -> Mapping[str, Value]:
        """Return the attributes that were written at a site."""
        return self._cells.get(instance, {})

    def _names_set(self, symbols: SymbolTable, cls: Class) -> frozenset[str]:
        names = self._assigned.get(cls)
        if names is None:
            owners = _with_bases(symbols, cls)
            names = frozenset(name for owner in owners for name in _initialized_names(owner))
            self._assigned[cls] = names
        return names

    def counts(self, facts: Value) -> Value:
        """Return the facts about counters and the mode of modules."""
        known = facts.objects[0].facts
        return with_facts(
            {
                key: value
                for key, value in known.items()
                if key[1] == "training" or key[1] in self.counters
            }
        )

    def as_fact(self, name: str, value: Value) -> Value | None:
        """Return the value as a fact; None if it would decide no test."""
        if name not in self.tested:
            return None
        if type(value.const) is int:
            return value if name in self.counters else None
        if value.const is None or isinstance(value.const, bool):
            return value
        content = persistent_taint(value.content)
        if (content and value.known) or value.objects_of(ProcessGroup):
            return replace(value, content=content, absent=persistent_taint(value.absent))
        return None


def _with_bases(symbols: SymbolTable, cls: Class) -> tuple[Class, ...]:
    return (cls, *(base for base in symbols.bases(cls) if isinstance(base, Class)))


def _flag(value: Value) -> Hashable:
    """Return what of an argument distinguishes objects made by one call."""
    const = value.const if isinstance(value.const, (bool, type(None))) else NO_CONSTANT
    return const, taint_kinds(value.content)


def _initialized_names(cls: Class) -> Iterator[str]:
    """Yield the attributes that ``__init__`` always sets, or the fields of a data class."""
    method = cls.methods.get("__init__")
    if method is None:
        for statement in cls.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                yield statement.target.id
        return
    if isinstance(method.node, ast.Lambda) or not method.parameters:
        return
    for statement in method.node.body:
        for target in getattr(statement, "targets", None) or [getattr(statement, "target", None)]:
            for node in ast.walk(target) if target is not None else ():
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id == method.parameters[0]
                ):
                    yield node.attr


def _tested_names(modules: Iterable[Module]) -> frozenset[str]:
    """Return the names and dotted names in lines that test something."""
    lines = "\n".join(
        line for module in modules for line in module.lines if _TEST.search(line) is not None
    )
    return frozenset(_WORD.findall(lines)) | frozenset(_DOTTED.findall(lines)) | {"training"}


def _counters(modules: Iterable[Module]) -> frozenset[str]:
    """Return names that are both incremented and decremented by one."""
    changes = {
        change
        for module in modules
        for line in module.lines
        if "+= 1" in line or "-= 1" in line
        for change in _STEP.findall(line)
    }
    return frozenset(name for name, sign in changes if sign == "+" and (name, "-") in changes)


# ---- facts


def known_facts(names: Mapping[str, Value]) -> dict[FactKey, Value]:
    """Return the facts that hold in a scope with these variables."""
    facts: dict[FactKey, Value] = names.get(HEAP, NO_FACTS).objects[0].facts
    return facts


def known_attribute(
    facts: Mapping[FactKey, Value], obj: Instance, owners: Sequence[Class], name: str
) -> Value | None:
    """Return what is known here of an attribute, of the object or else of its class."""
    for owner in (obj, *owners):
        known = facts.get((owner, name))
        if known is not None:
            return known
    return None


def with_facts(facts: dict[FactKey, Value]) -> Value:
    """Return the pseudo-variable that holds these facts."""
    return Value(objects=(HeapFacts(facts),)) if facts else NO_FACTS


def set_fact(names: dict[str, Value], key: FactKey, value: Value | None) -> None:
    """Set what is known of an attribute or module variable from here on; None: nothing."""
    facts = known_facts(names)
    if value is None and key not in facts:
        return
    rest = {other: known for other, known in facts.items() if other != key}
    names[HEAP] = with_facts(rest if value is None else rest | {key: value})


def fact_key(owner: Value, name: str) -> FactKey | None:
    """Return the key of facts about an attribute; None unless the owner is one object or class."""
    objects: list[Any] = owner.objects_of((Instance, ClassObject))
    if len(objects) != 1:
        return None
    return (objects[0] if isinstance(objects[0], Instance) else objects[0].cls), name


def return_facts(names: dict[str, Value], new: Value) -> None:
    """Take over the facts at the end of a called function; forget attributes that it changed."""
    if names.get(HEAP) is new:
        return
    old_facts, new_facts = known_facts(names), new.objects[0].facts
    names[HEAP] = new
    changed = {
        name
        for owner, name in {**old_facts, **new_facts}
        if isinstance(owner, Instance)
        and old_facts.get((owner, name)) is not new_facts.get((owner, name))
    }
    if changed:
        for written in [name for name in names if name.rpartition(".")[2] in changed]:
            if "." in written:
                del names[written]


def forget_changes(names: dict[str, Value], before: Value) -> None:
    """Forget what has changed since: code that runs at any time, such as a thread, may do that."""
    old, new = before.objects[0].facts, known_facts(names)
    names[HEAP] = with_facts({key: value for key, value in new.items() if old.get(key) == value})


def apply_change(facts: Value, before: Value, after: Value) -> Value:
    """Return the facts with what changed between two points."""
    if before is after:
        return facts
    old, new = before.objects[0].facts, after.objects[0].facts
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    rest = {key: value for key, value in facts.objects[0].facts.items() if key not in changed}
    return with_facts(rest | {key: new[key] for key in changed if key in new})


def change_exit_facts(frame: Frame, first: int, before: Value) -> None:
    """Apply what the end of a block changed to the facts where its body returns."""
    frame.exit_facts[first:] = [
        apply_change(facts, before, frame.facts) for facts in frame.exit_facts[first:]
    ]


def counted(old: Value, change: Value, operator: ast.operator) -> Value | None:
    """Return the value of a counter after ``depth += 1``; None if it is not known."""
    if type(old.const) is not int or type(change.const) is not int:
        return None
    total = old.const + (change.const if isinstance(operator, ast.Add) else -change.const)
    return Value(const=max(-_MAX_COUNT, min(_MAX_COUNT, total)))
