"""Classes of the receivers of methods, as annotations and constructors in the text say.

Used to find the methods that a function may call, without executing it. A receiver whose class is
not known from an annotation, or from the call that creates it, may be an object of any class.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from holdfast.lint.sources.modules import (
    FUNCTIONS,
    Class,
    Function,
    Module,
    SymbolTable,
    dotted_name,
)

#: The program classes that an object may be of; None: any class.
Classes = tuple[Class, ...] | None
#: Annotations that say nothing of the methods of an object.
_OPEN_NAMES = frozenset({
    "object", "type", "typing.Any", "typing.Self", "typing.TypeVar", "typing.Callable",
    "collections.abc.Callable", "functools.partial", "types.ModuleType",
    "contextlib.AbstractContextManager", "contextlib.ExitStack",
})  # fmt: skip
_TRANSPARENT_NAMES = frozenset({"Optional", "Union", "Annotated", "Final", "ClassVar", "Required"})
_BUILTIN_NAMES = frozenset(dir(builtins))


class ReceiverTypes:
    """Finds the classes of variables and attributes; results are kept."""

    def __init__(self, symbols: SymbolTable, classes: Iterable[Class]) -> None:
        self._symbols = symbols
        self._attributes: dict[Class, dict[str, Classes]] = {}
        self._subclasses: dict[str, list[Class]] = defaultdict(list)
        for cls in classes:
            for base in symbols.bases(cls):
                if isinstance(base, str):
                    self._subclasses[base].append(cls)

    def variables(self, function: Function) -> dict[str, Classes]:
        """Return the classes of a function's parameters and local variables."""
        found: dict[str, Classes] = {}
        module, arguments = function.module, function.node.args
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            found[parameter.arg] = self._annotated(module, parameter.annotation)
        if isinstance(function.node, ast.Lambda):
            return found
        for target, classes in self._assignments(function.node.body, module, found):
            known = found.get(target, ())
            found[target] = None if known is None or classes is None else (*known, *classes)
        return found

    def attribute(self, cls: Class, name: str) -> Classes:
        """Return the classes of an attribute or property."""
        for owner in (cls, *self._symbols.bases(cls)):
            if not isinstance(owner, Class):
                return None
            method = owner.methods.get(name)
            if method is not None:
                return self._returned(method)
            attributes = self._attributes.get(owner)
            if attributes is None:
                attributes = self._attributes[owner] = self._find_attributes(owner)
            if name in attributes:
                return attributes[name]
        return None

    def _find_attributes(self, cls: Class) -> dict[str, Classes]:
        """Return the classes of annotated attributes, and of those that the constructor sets."""
        found: dict[str, Classes] = {}
        for statement in cls.node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = self._annotated(cls.module, statement.annotation)
        method = cls.methods.get("__init__")
        if method is not None and method.parameters and not isinstance(method.node, ast.Lambda):
            names = self.variables(method)
            prefix = f"{method.parameters[0]}."
            for target, classes in self._assignments(method.node.body, cls.module, names):
                if target.startswith(prefix):
                    found.setdefault(target.removeprefix(prefix), classes)
        return found

    def _assignments(
        self, body: Sequence[ast.stmt], module: Module, names: dict[str, Classes]
    ) -> Iterator[tuple[str, Classes]]:
        """Yield what statements assign to variables and attributes, by dotted name."""
        for statement in body:
            match statement:
                case ast.Assign(targets=targets, value=value):
                    classes = self._value(module, value, names)
                    for target in targets:
                        yield from _targets(target, classes)
                case ast.AnnAssign(target=target, annotation=annotation):
                    yield from _targets(target, self._annotated(module, annotation))
                case ast.For(target=target) | ast.AsyncFor(target=target):
                    yield from _targets(target, None)
                case ast.With(items=items) | ast.AsyncWith(items=items):
                    for item in items:
                        yield from _targets(item.optional_vars, None)
                case _:
                    pass
            for block in _blocks(statement):
                yield from self._assignments(block, module, names)

    def _value(self, module: Module, node: ast.expr, names: dict[str, Classes]) -> Classes:
        """Return the classes of an assigned value: a parameter, or what a call returns."""
        match node:
            case ast.Constant() | ast.JoinedStr() | ast.List() | ast.Dict() | ast.Tuple():
                return ()
            case ast.Name(id=name):
                return names.get(name)
            case ast.Call(func=called):
                definition = self._resolve(module, dotted_name(called))
                if isinstance(definition, Class):
                    return (definition,)
                return self._returned(definition) if isinstance(definition, Function) else None
            case _:
                return None

    def _returned(self, function: Function) -> Classes:
        if isinstance(function.node, ast.Lambda):
            return None
        is_plain = not function.decorators or function.decorated_by("property", "cached_property")
        return self._annotated(function.module, function.node.returns) if is_plain else None

    def _resolve(self, module: Module, name: str) -> Function | Class | Module | str | None:
        """Return what a dotted name means in a module; None if it is a variable."""
        first, _, rest = name.partition(".")
        if first not in module.names:
            return first if first in _BUILTIN_NAMES else None
        definition = self._symbols.resolve_member(module, first)
        if not rest:
            return definition
        if isinstance(definition, Module):
            return self._symbols.resolve(f"{definition.name}.{rest}")
        return f"{definition}.{rest}" if isinstance(definition, str) else None

    def _annotated(self, module: Module, node: ast.expr | None) -> Classes:
        """Return the program classes that an annotation allows."""
        classes: Classes = None
        match node:
            case ast.Constant(value=None):
                classes = ()
            case ast.Constant(value=str(text)):
                with suppress(SyntaxError):
                    classes = self._annotated(module, ast.parse(text, mode="eval").body)
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                classes = union_of(self._annotated(module, left), self._annotated(module, right))
            case ast.Subscript(value=value, slice=inner):
                if dotted_name(value).rpartition(".")[2] in _TRANSPARENT_NAMES:
                    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                    classes = union_of(*(self._annotated(module, part) for part in parts))
                else:
                    classes = self._annotated(module, value)
            case ast.Name() | ast.Attribute():
                classes = self._named(self._resolve(module, dotted_name(node)))
            case _:
                pass
        return classes

    def _named(self, definition: Function | Class | Module | str | None) -> Classes:
        """Return the program classes that an annotation's name allows."""
        if isinstance(definition, Class):
            bases = self._symbols.bases(definition)
            return None if "typing.Protocol" in bases else (definition,)
        if not isinstance(definition, str) or definition in _OPEN_NAMES:
            return None
        is_standard = definition.partition(".")[0] in sys.stdlib_module_names
        if not (is_standard or definition in _BUILTIN_NAMES):
            return None
        return tuple(self._subclasses.get(definition, ()))


def union_of(*several: Classes) -> Classes:
    """Return the classes of all; None if one is unknown."""
    found: dict[Class, None] = {}
    for classes in several:
        if classes is None:
            return None
        found |= dict.fromkeys(classes)
    return tuple(found)


def _blocks(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    """Yield the blocks of a statement; nested definitions have variables of their own."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return
    for block in ("body", "orelse", "finalbody"):
        yield getattr(statement, block, ())
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _targets(target: ast.expr | None, classes: Classes) -> Iterator[tuple[str, Classes]]:
    """Yield the dotted names that an assignment to ``target`` sets."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _targets(element, None)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, None)
    elif name := dotted_name(target):
        yield name, classes
