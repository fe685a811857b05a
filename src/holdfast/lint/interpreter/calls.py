"""Calls of the program's functions and classes (executed) and of libraries (modelled)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.lint.abstract_domain.effects import (
    Branch,
    EffectPath,
    GroupScope,
    Operation,
    collective_sequence,
)
from holdfast.lint.abstract_domain.values import (
    HEAP,
    UNIFORM,
    UNKNOWN,
    DictEntries,
    OpenDict,
    TaintKind,
    Value,
    join_values,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    ClassObject,
    FunctionObject,
    GuardedCallable,
    Instance,
    LibraryInstance,
    LibraryMethod,
    LibraryName,
    bound_method,
    group_instances,
    model_outputs,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall, positional_arguments
from holdfast.lint.abstract_state.elements import (
    element_of,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.function_summaries import SHARDED
from holdfast.lint.abstract_state.heap import known_facts
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.bare_models import with_bare_output
from holdfast.lint.divergence.failures import record_failure, record_user_failure
from holdfast.lint.divergence.file_accesses import record_access, record_named_access
from holdfast.lint.divergence.misused_values import record_misuse, record_own_share
from holdfast.lint.interpreter.functions import unknown_result
from holdfast.lint.interpreter.iteration import is_sized, length_taint, own_length_taint
from holdfast.lint.library_models.calls import library_call
from holdfast.lint.library_models.classes import call_instance, library_base
from holdfast.lint.library_models.methods import method_call
from holdfast.lint.sources.modules import Class, dotted_name, last_name

_MAX_TEXT = 80
#: The base of a model that Lightning wraps, in the tables of classes.
_MODULE = "lightning.Module"
#: Number of unknown arguments for a lambda that is passed to unknown code.
_MAX_PARAMETERS = 8
#: Names of functions that may combine a batch over ranks.
_COMBINES_RANKS = re.compile(r"gather|reduce|sync|broadcast|agree|all_|dist", re.IGNORECASE)


def _is_wrapper(obj: Any) -> bool:
    return isinstance(obj, LibraryInstance) and obj.name.startswith(
        ("wrapped:", "deepspeed.Engine")
    )


class CallEvaluator:
    """Evaluates calls."""

    def __init__(self, state: InterpreterState) -> None:
        self.state = state

    @property
    def evaluators(self) -> dict[type[ast.expr], Callable[..., Value]]:
        """Return the method for each kind of expression."""
        return {ast.Call: self._call}

    def _call(self, frame: Frame, node: ast.Call) -> Value:
        called = self.state.evaluate(frame, node.func)
        value = self.call(frame, node, called, self._arguments(frame, node))
        return with_bare_output(self.state, frame, node, called, value)

    def _arguments(self, frame: Frame, node: ast.Call) -> Arguments:
        arguments = Arguments()
        for arg in node.args:
            value = self.state.evaluate(frame, arg.value if isinstance(arg, ast.Starred) else arg)
            if not isinstance(arg, ast.Starred):
                arguments.positional.append(value)
                arguments.nodes.append(arg)
            elif value.items is not None:
                arguments.positional.extend(value.items)
                arguments.nodes.extend([None] * len(value.items))
            else:
                arguments.starred = element_of(value)
        for keyword in node.keywords:
            value = self.state.evaluate(frame, keyword.value)
            if keyword.arg is not None:
                arguments.named[keyword.arg] = value
                arguments.named_nodes[keyword.arg] = keyword.value
            elif value.objects and isinstance(value.objects[0], DictEntries):
                arguments.named.update(value.objects[0].entries)
            else:
                known = value.objects_of(OpenDict)
                if known:
                    arguments.named.update(known[0].entries)
                    value = known[0].rest
                arguments.starred = (
                    value if arguments.starred is None else join_values((arguments.starred, value))
                )
        return arguments

    def call(self, frame: Frame, node: ast.expr, called: Value, arguments: Arguments) -> Value:
        """Call each object that ``called`` may be; several objects become a branch."""
        paths: list[tuple[Value, EffectPath]] = []
        before, ends = frame.facts, []
        for obj, instances in group_instances(called.objects):
            if len(called.objects) > 1:
                frame.scope.names[HEAP] = before
            with frame.collect_effects() as inner:
                value = (
                    self._call_instance(frame, node, instances, arguments)
                    if instances
                    else self._call_object(frame, node, obj, arguments)
                )
            ends.append(frame.facts)
            if value is not None:
                paths.append((value, tuple(inner)))
        if any(end is not before for end in ends):
            frame.scope.names[HEAP] = join_values(ends)
        if not paths:
            return self._call_unknown(frame, node, called, arguments)
        # A library method's name does not depend on its receiver's taint, and no rank alone wraps
        # its model.
        is_equal = all(isinstance(obj, LibraryMethod) for obj in called.objects) or (
            len(called.objects) > 1 and any(map(_is_wrapper, called.objects))
        )
        differs = () if is_equal else called.content
        paths = _merge_equal_hooks(paths)
        for at, (_, path) in enumerate(paths):
            if not path:
                continue
            if len(paths) == 1 or (
                differs == () and all(other_path == path for _, other_path in paths)
            ):
                frame.effects.extend(path)
                break
            text = self.state.unparse(node)[:_MAX_TEXT]
            frame.add_effect(
                Branch(frame.location(node), text, differs, not differs and at == 0, path, ())
            )
        return (
            paths[0][0] if len(paths) == 1 else join_values([value for value, _ in paths], differs)
        )

    def _call_object(
        self, frame: Frame, node: ast.expr, obj: Any, arguments: Arguments
    ) -> Value | None:
        value: Value | None = None
        match obj:
            case FunctionObject():
                value = self.state.invoke(frame, node, obj, arguments)
            case ClassObject(cls=cls):
                value = self._construct(frame, node, cls, arguments)
            case Instance():
                value = self._call_instance(frame, node, (obj,), arguments)
            case GuardedCallable():
                value = self._call_guarded(frame, node, obj, arguments)
            case LibraryName(name=name):
                call = LibraryCall(frame, node, name, arguments)
                record_failure(call)
                record_access(self.state, call)
                record_misuse(self.state, call)
                value = library_call(self.state, call)
            case LibraryInstance(name=name, wrapped=wrapped):
                value = call_instance(
                    LibraryCall(frame, node, "__call__", arguments, name, Value(objects=(obj,)))
                )
                if wrapped is not None and value is not None:
                    value = self._call_wrapped(frame, node, wrapped, arguments, value)
            case LibraryMethod(owner=owner, name=name, receiver=receiver):
                kind = owner.name if owner is not None else ""
                call = LibraryCall(frame, node, name, arguments, kind, receiver)
                record_failure(call)
                record_access(self.state, call)
                record_misuse(self.state, call)
                value = method_call(self.state, call)
            case _:
                pass
        return value

    def _call_guarded(
        self, frame: Frame, node: ast.expr, obj: GuardedCallable, arguments: Arguments
    ) -> Value | None:
        """Call with bound arguments first; a guard becomes a branch."""
        bound_count = len(obj.positional)
        all_arguments = replace(
            arguments,
            positional=[*obj.positional, *arguments.positional],
            nodes=[*[None] * bound_count, *arguments.nodes],
            named=dict(obj.named) | arguments.named,
        )
        before = frame.facts
        with frame.collect_effects(obj.guard) as inner:
            value = self._call_object(frame, node, obj.target, all_arguments)
        if not obj.guard:
            frame.effects.extend(inner)
            return value
        frame.scope.names[HEAP] = join_values((before, frame.facts), obj.guard)
        if inner:
            text = obj.guard[0].text
            frame.add_effect(
                Branch(frame.location(node), text, obj.guard, known=True, yes=tuple(inner), no=())
            )
        return None if value is None else join_values((value, UNIFORM), obj.guard)

    def _call_unknown(
        self, frame: Frame, node: ast.expr, called: Value, arguments: Arguments
    ) -> Value:
        """Return an unknown function's result, tainted like its arguments; lambdas are executed."""
        before = frame.facts
        record_user_failure(frame, node, arguments)
        record_named_access(self.state, frame, node, arguments)
        for value in arguments.all_values:
            for obj in value.objects:
                if (
                    isinstance(obj, FunctionObject)
                    and obj.bound is None
                    and isinstance(obj.function.node, ast.Lambda)
                ):
                    self.state.invoke(
                        frame, node, obj, positional_arguments(*[UNKNOWN] * _MAX_PARAMETERS)
                    )
        if frame.facts is not before:
            frame.scope.names[HEAP] = join_values((before, frame.facts))
        name = dotted_name(node.func) if isinstance(node, ast.Call) else ""
        value = unknown_result(name, called, *arguments.all_values)
        combines = _COMBINES_RANKS.search(name) is not None
        if combines:
            value = replace(value, content=without_kinds(value.content, {TaintKind.DATA}))
        passes_batch = not combines and any(BATCH in item.objects for item in arguments.positional)
        objects = (*model_outputs(arguments.positional), *((BATCH,) if passes_batch else ()))
        return replace(value, objects=objects) if objects else value

    def _call_wrapped(
        self, frame: Frame, node: ast.expr, wrapped: Value, arguments: Arguments, output: Value
    ) -> Value:
        """Execute the program's model inside a wrapper and return its result."""
        for obj, instances in group_instances(wrapped.objects_of(Instance)):
            method = self.state.symbols.find_method(obj.cls, "forward")
            if method is not None:
                value = self.state.invoke(frame, node, bound_method(method, *instances), arguments)
                return replace(
                    value, objects=(*output.objects, *value.objects), known=False, stored_in=()
                )
        return output

    # ---- classes of the program

    def _construct(self, frame: Frame, node: ast.expr, cls: Class, arguments: Arguments) -> Value:
        base = library_base(self.state.symbols, cls)
        created = self.state.heap.allocate(cls, node, frame.file, arguments)
        instance = Value(
            length=length_taint(self.state, cls, arguments),
            objects=(created, LibraryInstance(base)) if base else (created,),
        )
        method = self.state.symbols.find_method(cls, "__init__")
        if method is not None:
            call = LibraryCall(frame, node, cls.name, arguments)
            record_own_share(self.state, call, method.parameters[1:])
            # ranks that skip this call have no instance at all
            control, frame.control = (frame.control, ())
            self.state.invoke(frame, node, FunctionObject(method, None, instance), arguments)
            if instance.length or is_sized(self.state, cls):
                instance = replace(
                    instance,
                    length=own_length_taint(self.state, frame, node, created, instance.length),
                )
            frame.control = control
            return instance
        annotated = [
            statement.target for statement in cls.node.body if isinstance(statement, ast.AnnAssign)
        ]
        fields = [
            (name, self._field(cls, arguments, at, name))
            for at, name in enumerate(
                target.id for target in annotated if isinstance(target, ast.Name)
            )
        ]
        for name, value in fields:  # a dataclass
            if value is not None:
                self.state.write_attribute(created, name, value)
        if any(last_name(parent) == "NamedTuple" for parent in cls.node.bases):
            instance = replace(instance, items=tuple(value or UNKNOWN for _, value in fields))
        after = self.state.symbols.find_method(cls, "__post_init__")
        if after is not None:
            self.state.invoke(frame, node, FunctionObject(after, None, instance), Arguments())
        return instance

    def _field(self, cls: Class, arguments: Arguments, at: int, name: str) -> Value | None:
        """Return the value of a field of a data class: an argument, or the default."""
        value = arguments.get(at, name)
        if value is not None:
            return value
        default = self.state.heap.default(cls, name)
        if arguments.starred is None or default is None:
            return default if arguments.starred is None else None
        # ``Config(**vars(parser.parse_args()))`` may set it
        return join_values((default, Value(arguments.starred.content, known=False)))

    def _call_instance(
        self, frame: Frame, node: ast.expr, instances: tuple[Instance, ...], arguments: Arguments
    ) -> Value | None:
        cls = instances[0].cls
        method = self.state.symbols.find_method(cls, "__call__") or self.state.symbols.find_method(
            cls, "forward"
        )
        self.state.summaries.record_read(cls, SHARDED)
        if cls in self.state.sharded or self._synchronizes(frame, instances):
            frame.add_effect(
                Operation("forward", frame.location(node), GroupScope.WORLD, "forward")
            )
        elif self.state.shards_models and library_base(self.state.symbols, cls) == _MODULE:
            forward = Operation(
                "forward", frame.location(node), GroupScope.WORLD, "sharded", may_not_wait=True
            )
            frame.add_effect(forward)
        if method is None:
            return None
        value = self.state.invoke(frame, node, bound_method(method, *instances), arguments)
        if cls in self.state.sharded:
            return replace(value, objects=(LibraryInstance("output:fsdp"), *value.objects))
        return value

    def _synchronizes(self, frame: Frame, instances: tuple[Instance, ...]) -> bool:
        """Return True for a model in training mode whose normalization is over all ranks."""
        if instances[0].cls not in self.state.synchronized:
            return False
        modes = [known_facts(frame.scope.names).get((obj, "training")) for obj in instances]
        return all(mode is not None and mode.const is True for mode in modes)


def _merge_equal_hooks(paths: list[tuple[Value, EffectPath]]) -> list[tuple[Value, EffectPath]]:
    """Merge hooks that only some ranks have, if all of them enter the same collectives."""
    guarded = [
        branch
        for _, path in paths
        if len(path) == 1
        and isinstance(branch := path[0], Branch)
        and not branch.no
        and branch.taint
    ]
    if (
        len(guarded) < 2
        or len({collective_sequence(branch.yes) for branch in guarded}) > 1
        or len({branch.taint for branch in guarded}) > 1
    ):
        return paths
    return [(value, path[0].yes if path and path[0] in guarded else path) for value, path in paths]
