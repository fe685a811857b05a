"""Definitions and imports inside functions."""

from __future__ import annotations

import ast
from collections.abc import Callable

from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.abstract_state.abstract_objects import ClassObject, FunctionObject, LibraryName
from holdfast.lint.abstract_state.arguments import Arguments, positional_arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.interpreter.functions import FunctionRunner
from holdfast.lint.interpreter.lookup import NameEvaluator
from holdfast.lint.sources.modules import Class, Function, absolute_module, last_name, make_class

#: Functions that describe a field of a dataclass, attrs or pydantic class.
_FIELDS = frozenset({"field", "Field", "ib", "attrib"})


class DefinitionExecutor:
    """Executes definitions and imports; those at module level are known before execution."""

    def __init__(
        self, state: InterpreterState, runner: FunctionRunner, lookup: NameEvaluator
    ) -> None:
        self.state = state
        self.runner = runner
        self.lookup = lookup

    def _function(self, frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if frame.function is not None:
            function = self.state.nested_function(frame, node, node.name)
            frame.scope.names[node.name] = self.runner.apply_decorators(
                frame, FunctionObject(function, frame.scope)
            )
        elif any(isinstance(decorator, ast.Call) for decorator in node.decorator_list):
            known = frame.scope.module.names.get(node.name)  # the decorator may register it
            if isinstance(known, Function) and known.node is node:
                self.runner.decorated_value(known, None)

    def _class(self, frame: Frame, node: ast.ClassDef) -> None:
        known = frame.scope.module.names.get(node.name) if frame.function is None else None
        if isinstance(known, Class) and known.node is node:
            cls = known
        else:
            cls = self.state.nested_classes.setdefault(
                id(node), make_class(node, frame.scope.module)
            )
            frame.scope.names[node.name] = Value(objects=(ClassObject(cls),))
        for statement in node.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                value = self._field_default(frame, statement.value)
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.state.heap.set_default(cls, target.id, value)
                        self.state.write_attribute(cls, target.id, value)
        self._run_class_decorators(frame, node, cls)

    def _field_default(self, frame: Frame, node: ast.expr) -> Value:
        """Return a class attribute's default; for a dataclass field its factory's result."""
        if isinstance(node, ast.Call) and last_name(node.func) in _FIELDS:
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            if "default" in keywords:
                return self.state.evaluate(frame, keywords["default"])
            factory = keywords.get("default_factory", keywords.get("factory"))
            if factory is not None:
                with frame.collect_effects():  # the factory runs when an instance is created
                    return self.state.call(
                        frame, node, self.state.evaluate(frame, factory), Arguments()
                    )
        return self.state.evaluate(frame, node)

    def _run_class_decorators(self, frame: Frame, node: ast.ClassDef, cls: Class) -> None:
        """Call decorators of the program, which may register the class; their result is ignored."""
        for decorator in reversed(node.decorator_list):
            decorator_value = self.state.evaluate(frame, decorator)
            if decorator_value.objects_of(FunctionObject):
                self.state.call(
                    frame,
                    decorator,
                    decorator_value,
                    positional_arguments(Value(objects=(ClassObject(cls),))),
                )

    def _import(self, frame: Frame, node: ast.Import) -> None:
        if frame.function is not None:
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                definition = self.state.symbols.resolve(name)
                value = (
                    Value(objects=(LibraryName(definition),))
                    if isinstance(definition, str)
                    else self.lookup.definition_value(definition)
                )
                frame.scope.names[alias.asname or name] = value

    def _import_from(self, frame: Frame, node: ast.ImportFrom) -> None:
        if frame.function is not None:
            home = absolute_module(frame.scope.module, node)
            for alias in node.names:
                frame.scope.names[alias.asname or alias.name] = self.lookup.definition_value(
                    self.state.symbols.resolve(f"{home}.{alias.name}")
                )

    @property
    def executors(self) -> dict[type[ast.stmt], Callable[..., None]]:
        """Return the method for each kind of statement."""
        return {
            ast.FunctionDef: self._function,
            ast.AsyncFunctionDef: self._function,
            ast.ClassDef: self._class,
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
        }
