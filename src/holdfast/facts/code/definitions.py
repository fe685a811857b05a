"""Statements that give names their meaning inside of functions: definitions and imports."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import ClassVar

from holdfast.facts.code.arguments import Arguments, given_by
from holdfast.facts.code.assigning import Assigning
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.modules import Class, Function, absolute, class_of, last_name
from holdfast.facts.code.things import Func, Lib, Type
from holdfast.facts.code.values import Value

#: What describes a field of a dataclass, of attrs, of pydantic.
_FIELDS = frozenset({"field", "Field", "ib", "attrib"})


class Definitions(Assigning):
    """Part of the interpreter: definitions and imports; those at the top of a module are known before it is run."""

    def _function(self, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        function = self.nested(frame, node, node.name)
        if frame.function is not None:
            frame.scope.names[node.name] = self.decorate(frame, Func(function, frame.scope))
        elif any(isinstance(each, ast.Call) for each in node.decorator_list):
            known = frame.scope.module.names.get(node.name)  # it may be put into a list of those that are called later
            if isinstance(known, Function) and known.node is node:
                self.decorated(known, None)

    def _class(self, frame: Frame, node: ast.ClassDef) -> None:
        known = frame.scope.module.names.get(node.name) if frame.function is None else None
        if isinstance(known, Class) and known.node is node:
            cls = known
        else:
            cls = self.classes.setdefault(id(node), class_of(node, frame.scope.module))
            frame.scope.names[node.name] = Value(things=(Type(cls),))
        for statement in node.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                value = self._default(frame, statement.value)
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.write_attribute(cls, target.id, value)
        self._registered(frame, node, cls)

    def _default(self, frame: Frame, node: ast.expr) -> Value:
        """What a class says that an attribute holds; of a dataclass's field what its factory makes."""
        if isinstance(node, ast.Call) and last_name(node.func) in _FIELDS:
            said = {each.arg: each.value for each in node.keywords}
            if "default" in said:
                return self.evaluate(frame, said["default"])
            factory = said.get("default_factory", said.get("factory"))
            if factory is not None:
                with frame.apart():  # it runs where an instance is made
                    return self.call(frame, node, self.evaluate(frame, factory), Arguments())
        return self.evaluate(frame, node)

    def _registered(self, frame: Frame, node: ast.ClassDef, cls: Class) -> None:
        """A decorator of the program may put the class into a table; what it gives back is taken for the class."""
        for each in reversed(node.decorator_list):
            found = self.evaluate(frame, each)
            if any(isinstance(thing, Func) for thing in found.things):
                self.call(frame, each, found, given_by(Value(things=(Type(cls),))))

    def _import(self, frame: Frame, node: ast.Import) -> None:
        if frame.function is not None:
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                found = self.names.find(name)
                value = Value(things=(Lib(found),)) if isinstance(found, str) else self.entity(found)
                frame.scope.names[alias.asname or name] = value

    def _import_from(self, frame: Frame, node: ast.ImportFrom) -> None:
        if frame.function is not None:
            home = absolute(frame.scope.module, node)
            for alias in node.names:
                frame.scope.names[alias.asname or alias.name] = self.entity(self.names.find(f"{home}.{alias.name}"))

    by_statement: ClassVar[dict[type[ast.stmt], Callable[..., None]]] = {
        ast.FunctionDef: _function,
        ast.AsyncFunctionDef: _function,
        ast.ClassDef: _class,
        ast.Import: _import,
        ast.ImportFrom: _import_from,
    }
