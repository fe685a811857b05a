"""Look up names, attributes and elements."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.lint import framework_calls, library, varying_values
from holdfast.lint.abstract_domain.values import (
    NO_CONSTANT,
    NONE_OBJECT,
    UNKNOWN,
    UNKNOWN_OBJECT,
    TaintKind,
    Value,
    constant_value,
    join_values,
)
from holdfast.lint.abstract_state.abstract_objects import (
    ATTRIBUTES,
    BATCH,
    CONFIGURED_MODEL,
    COUNT,
    LAUNCHER_RANK,
    PROGRESS_BAR,
    SIZED_TENSOR,
    ClassObject,
    DeviceMesh,
    FunctionObject,
    GuardedCallable,
    Instance,
    LibraryInstance,
    LibraryMethod,
    LibraryName,
    ModuleObject,
    VariableScope,
    group_instances,
    instance_of,
    is_callable,
    open_entry,
)
from holdfast.lint.abstract_state.arguments import Arguments
from holdfast.lint.abstract_state.elements import (
    named_loader,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.heap import known_attribute, known_facts
from holdfast.lint.abstract_state.process_stamps import (
    without_stamps,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.single_process import as_uniform
from holdfast.lint.framework_calls import HELD_OBJECTS
from holdfast.lint.interpreter.functions import FunctionRunner
from holdfast.lint.interpreter.subscripts import SubscriptEvaluator
from holdfast.lint.library_models.classes import library_base
from holdfast.lint.library_models.frameworks import created_run
from holdfast.lint.sources.modules import Class, Function, Module, canonical_name, last_name
from holdfast.lint.sources.relevance import COLLECTIVE_WORDS, COMMON_NAMES

_SIZE_ATTRIBUTES = frozenset({"shape", "ndim", "numel", "size", "dim", "__len__", "nelement"})
#: What the hooks of frameworks get, which is often of a class of the program.
_HOOK_OBJECTS = frozenset(
    name
    for parameters in framework_calls.HOOK_PARAMETERS.values()
    for names in parameters.values()
    for name in names
)
_BUILTINS = frozenset({
    "slice", "len", "range", "sorted", "set", "frozenset", "list", "tuple", "dict", "enumerate",
    "zip", "iter", "next", "int", "float", "bool", "str", "min", "max", "sum", "any", "all",
    "print", "open", "super", "isinstance", "getattr", "setattr", "hasattr", "reversed", "map",
    "filter", "abs", "round", "type", "id", "repr", "divmod", "input", "Exception", "ValueError",
    "RuntimeError",
})  # fmt: skip
#: Method names that library objects have too.
_LIBRARY_METHOD_NAMES = (
    COMMON_NAMES
    | COLLECTIVE_WORDS
    | frozenset(name for methods in library.METHODS.values() for name in methods)
)
#: Maximum number of attributes remembered that hold a value.
_MAX_STORED_IN = 3
#: Names of unknown objects whose rank is that of the process.
_COMMUNICATOR_NAME = re.compile(r"gang|group|comm$|communicator|world|(?:^|_)dist$|(?:^|_)pg$")
#: Attributes of a dict itself rather than of the configuration in it.
_DICT_METHODS = frozenset(dir(dict))
_NAME_ATTRIBUTES = frozenset({"__name__", "__qualname__"})


def _may_be_of_program(obj: object, name: str) -> bool:
    """Return True for what a hook gets, unless its library has a method of this name."""
    return (
        isinstance(obj, LibraryInstance)
        and obj.name in _HOOK_OBJECTS
        and name not in library.METHODS.get(obj.name, {})
    )


#: Fields of a batch, and of the results of ``topk`` and ``max``.
_BATCH_FIELD = re.compile(
    r"\w+_ids|labels?|targets?|\w*masks?|\w+_values|values|indices|x|y|tokens?|rewards?|images?"
    r"|\w+_lengths?|lengths?|boxes|data"
)


class NameEvaluator:
    """Evaluates names, attributes and elements."""

    def __init__(self, state: InterpreterState, runner: FunctionRunner) -> None:
        self._subscripts = SubscriptEvaluator(state)
        self.state = state
        self.runner = runner

    def variable_value(self, scope: VariableScope, name: str) -> Value:
        """Return the value of a variable."""
        at: VariableScope | None = scope
        while at is not None:
            if name in at.names:
                known = at.names[name]
                is_module = at.names is at.module.variables
                return self._variable(scope, at.module, name) if is_module else known
            at = at.outer
        if name == "__name__":
            return constant_value("__main__")
        module = scope.module
        if module.names.get(name) is not None:
            return self.definition_value(self.state.symbols.resolve_member(module, name))
        self.state.summaries.record_read(module, name)
        if name in module.variables:
            return self._variable(scope, module, name)
        for starred in module.star_imports:
            home = self.state.symbols.resolve(starred)
            if isinstance(home, Module) and (name in home.names or name in home.variables):
                return self.variable_value(VariableScope({}, home), name)
        return Value(objects=(LibraryName(name),)) if name in _BUILTINS else UNKNOWN

    def _variable(self, scope: VariableScope, module: Module, name: str) -> Value:
        """Return a module variable: what is known here, or what was written anywhere."""
        self.state.summaries.record_read(module, name)
        known = known_facts(scope.names).get((module, name))
        return known if known is not None else module.variables[name]

    def definition_value(self, definition: Function | Class | Module | str) -> Value:
        """Return the value of a program definition or library name."""
        match definition:
            case Function():
                name = canonical_name(f"{definition.module.name}.{definition.name}")
                if name in library.CALLS:
                    return Value(objects=(LibraryName(name),))
                return self.runner.decorated_value(definition, None)
            case Class():
                # for a library that is itself linted, the tables are more precise
                name = f"{definition.module.name}.{definition.name}"
                return Value(
                    objects=(
                        LibraryName(name) if name in library.CLASSES else ClassObject(definition),
                    )
                )
            case Module():
                return Value(objects=(ModuleObject(definition),))
            case str():
                home, _, last = definition.rpartition(".")
                owner = self.state.symbols.modules.get(home)
                if owner is not None:
                    self.state.summaries.record_read(owner, last)
                    if last in owner.variables:
                        return owner.variables[last]
                return Value(objects=(LibraryName(definition),))

    def _name(self, frame: Frame, node: ast.Name) -> Value:
        value = self.variable_value(frame.scope, node.id)
        return named_loader(node.id, value) or value

    # ---- attributes

    def _attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        value = self._written_attribute(frame, node)
        return named_loader(node.attr, value) or value

    def _written_attribute(self, frame: Frame, node: ast.Attribute) -> Value:
        written = self.state.dotted_name(node)
        if written in frame.scope.names:
            return frame.scope.names[written]
        if isinstance(node.value, ast.Call) and last_name(node.value.func) == "super":
            inherited = self._super_attribute(frame, node.attr)
            if inherited is not None:
                return inherited
        return self.evaluate_attribute(
            frame, self.state.evaluate(frame, node.value), node.attr, node
        )

    def _super_attribute(self, frame: Frame, name: str) -> Value | None:
        """Look up ``super().name`` in the bases of the own class, then of the instance's class."""
        function = frame.function
        if function is None or function.owner is None or not function.parameters:
            return None
        own_class = function.owner
        instance = self.variable_value(frame.scope, function.parameters[0])
        for cls in (
            own_class,
            *(obj.cls for obj in instance.objects if isinstance(obj, (Instance, ClassObject))),
        ):
            for base in self.state.symbols.bases(cls):
                if isinstance(base, Class) and base is not own_class and name in base.methods:
                    if base.methods[name].decorated_by(
                        "property", "cached_property"
                    ) or own_class in self.state.symbols.bases(base):
                        continue
                    return self.runner.decorated_value(base.methods[name], instance)
        known = library_base(self.state.symbols, own_class)
        if name in library.METHODS.get(known, {}):
            return Value(objects=(LibraryMethod(LibraryInstance(known), name, instance),))
        return None

    def evaluate_attribute(self, frame: Frame, base: Value, name: str, node: ast.expr) -> Value:
        """Return the value of an attribute, or of the entry of a configuration."""
        if base.objects and all(_may_be_of_program(obj, name) for obj in base.objects):
            own = self._unique_owner_attribute(frame, replace(base, objects=()), name, node)
            if own is not None:
                return own
        entry, rest = open_entry(base, name)
        if name in _DICT_METHODS or rest is base:
            return self._attribute_of(frame, base, name, node)
        return self._attribute_of(frame, rest, name, node) if entry is None else entry

    def _attribute_of(self, frame: Frame, base: Value, name: str, node: ast.expr) -> Value:
        instances = base.objects_of(Instance)
        values = [
            value
            for _, group in (group_instances(instances) if instances else ())
            if (value := self._instance_attribute(frame, group, name, base, node)) is not None
        ]
        values += self._guarded_methods(frame, base, name, node)
        if not values:
            others = [obj for obj in base.objects if not isinstance(obj, Instance)]
            found = [self._object_attribute(frame, obj, base, name, node) for obj in others]
            values = [value for value in found if value is not None]
        if values:
            # ``log = Recorder() if main else Silent()``: which method it is depends on the rank
            chosen = len({obj.cls for obj in instances}) > 1 and NONE_OBJECT not in base.objects
            return join_values(values, base.content if chosen else ())
        enumerated = name == "value" and isinstance(base.const, (str, int)) and not base.objects
        if enumerated or name in _SIZE_ATTRIBUTES:
            return base if enumerated else Value(content=base.length, known=base.known)
        owner = last_name(node.value) if isinstance(node, ast.Attribute) else ""
        kind = varying_values.VARYING_NAMES.get(name) or varying_values.VARYING_NAMES.get(
            f"{owner}.{name}"
        )
        if (
            kind is not None
            and not base.agreed
            and (not instances or self._has_unknown_bases(instances))
        ):
            return Value(self.state.taint_source(frame, kind, node), objects=(LAUNCHER_RANK,))
        if name == "rank" and not base.objects and _COMMUNICATOR_NAME.search(owner):
            named = self.state.taint_source(frame, TaintKind.RANK, node)
            return Value(tuple(replace(source, by_name=True) for source in named))
        self.state.summaries.record_read(owner, name)
        if (owner, name) in self.state.untyped_attributes and not base.agreed:
            return self.state.untyped_attributes[owner, name]
        known = library.RECEIVER_NAMES.get(owner)
        method = LibraryMethod(
            LibraryInstance(known) if known and name in library.METHODS[known] else None, name, base
        )
        only = self._unique_owner_attribute(frame, base, name, node)
        unknown = replace(base, element_length=(), absent=(), known=False, objects=(method,))
        unknown = replace(unknown, items=None, const=NO_CONSTANT, stored_in=(), ragged=0)
        return only or (None if base.content else named_loader(name)) or unknown

    def _guarded_methods(self, frame: Frame, base: Value, name: str, node: ast.expr) -> list[Value]:
        """Return methods of objects that only some ranks have."""
        methods_found = []
        for candidate in base.objects:
            if isinstance(candidate, GuardedCallable) and isinstance(candidate.target, Instance):
                with frame.collect_effects(candidate.guard):  # effects of a property are ignored
                    value = self._object_attribute(frame, candidate.target, base, name, node)
                if value is not None:
                    methods = (
                        GuardedCallable(obj, guard=candidate.guard)
                        for obj in value.objects
                        if is_callable(obj)
                    )
                    methods_found.append(replace(value, objects=tuple(methods)))
        return methods_found

    def _unique_owner_attribute(
        self, frame: Frame, base: Value, name: str, node: ast.expr
    ) -> Value | None:
        """In a small program, resolve a method of an unknown parameter by its only class."""
        receiver = node.value if isinstance(node, ast.Attribute) else None
        function = frame.function
        if (
            not self.state.is_small
            or base.objects
            or base.content
            or function is None
            or self.state.in_tests
        ):
            return None
        if not isinstance(receiver, ast.Name) or receiver.id not in function.parameters:
            return None
        cls = self.state.symbols.only_owner(name) if name not in _LIBRARY_METHOD_NAMES else None
        if cls is not None:
            return self._instance_attribute(frame, (Instance(cls),), name, instance_of(cls), node)
        return None

    def _has_unknown_bases(self, objects: list[Instance]) -> bool:
        """Return True if a class has bases outside of the program, which may define attributes."""
        return any(
            isinstance(base, str) for obj in objects for base in self.state.symbols.bases(obj.cls)
        )

    def _object_attribute(
        self, frame: Frame, obj: object, base: Value, name: str, node: ast.expr
    ) -> Value | None:
        match obj:
            case ModuleObject(module=module):
                return self._module_attribute(frame, module, name)
            case LibraryName(name=owner):
                return self._member_of_library(canonical_name(f"{owner}.{name}"))
            case Instance():
                return self._instance_attribute(frame, (obj,), name, base, node)
            case ClassObject() | FunctionObject():
                return self._definition_attribute(frame, obj, name)
            case LibraryInstance():
                return self._library_attribute(frame, obj, base, name, node)
            case _:
                method = LibraryMethod(None, name, base)
                return Value(objects=(method,)) if isinstance(obj, DeviceMesh) else None

    def _member_of_library(self, name: str) -> Value:
        """Return a function, class or variable of a library."""
        absent = created_run(self.state) if name == "wandb.run" else ()
        if absent:
            return Value(absent, absent=absent, known=False)
        return Value(objects=(LibraryName(name),))

    def _module_attribute(self, frame: Frame, module: Module, name: str) -> Value:
        self.state.summaries.record_read(module, name)
        if name in module.variables:
            return self._variable(frame.scope, module, name)
        return self.definition_value(self.state.symbols.resolve_member(module, name))

    def _definition_attribute(
        self, frame: Frame, obj: ClassObject | FunctionObject, name: str
    ) -> Value | None:
        if name in _NAME_ATTRIBUTES:
            return constant_value(
                obj.cls.name if isinstance(obj, ClassObject) else obj.function.name
            )
        if isinstance(obj, FunctionObject):
            return None
        frame.used_names.add(name)
        known = known_facts(frame.scope.names).get((obj.cls, name))
        return self._class_attribute(obj.cls, name) if known is None else known

    def _class_attribute(self, cls: Class, name: str) -> Value | None:
        method = self.state.symbols.find_method(cls, name)
        if method is None:
            if name == "apply" and library_base(self.state.symbols, cls) == "autograd":
                return Value(
                    objects=(
                        LibraryMethod(
                            LibraryInstance("autograd"), name, Value(objects=(ClassObject(cls),))
                        ),
                    )
                )
            self.state.summaries.record_read(cls, name)
            return cls.attributes.get(name)
        return self.runner.decorated_value(
            method,
            Value(objects=(ClassObject(cls),)) if method.decorated_by("classmethod") else None,
        )

    def _library_attribute(
        self, frame: Frame, instance: LibraryInstance, base: Value, name: str, node: ast.expr
    ) -> Value:
        owner, wrapped = instance.name, instance.wrapped
        if instance == SIZED_TENSOR and name in _SIZE_ATTRIBUTES:
            return Value(content=base.length, known=base.known)
        if owner == PROGRESS_BAR and name == "n" and wrapped is not None:
            return wrapped
        if instance == BATCH and (name == "shape" or _BATCH_FIELD.fullmatch(name)):
            counts = name == "shape"
            return Value(
                base.length if counts else base.content,
                () if counts else base.length,
                known=False,
                objects=(COUNT if counts else BATCH,),
            )
        held = self._held_model(instance, name)
        if held is not None:
            return held
        kind = varying_values.VARYING_NAMES.get(name)
        knows = (
            owner.startswith(("wrapped:", "accelerate", "lightning", "deepspeed"))
            or owner in library.METHODS
        )
        if kind is not None and knows:
            return Value(self.state.taint_source(frame, kind, node), objects=(LAUNCHER_RANK,))
        return Value(
            base.content, base.length, known=False, objects=(LibraryMethod(instance, name, base),)
        )

    def _held_model(self, instance: LibraryInstance, name: str) -> Value | None:
        """Return the model in a wrapper, or what a trainer holds; None for other attributes."""
        if name == "module" and instance.name.startswith(("wrapped:", "deepspeed.Engine")):
            return self._wrapped_module(instance)
        held = HELD_OBJECTS.get(instance.name, {}).get(name)
        if held is None or (held == CONFIGURED_MODEL.name and not self.state.shards_models):
            return None
        return Value(objects=(LibraryInstance(held),), known=False)

    def _wrapped_module(self, wrapper: LibraryInstance) -> Value:
        """Return the model in a wrapper: without it, a sharded one has its shard only."""
        inner = (
            tuple(obj for obj in wrapper.wrapped.objects if obj is not UNKNOWN_OBJECT)
            if wrapper.wrapped is not None
            else ()
        )
        if wrapper.name in ("wrapped:fsdp", CONFIGURED_MODEL.name):
            return Value(objects=(wrapper, *inner), known=False)
        if wrapper.name == "deepspeed.Engine" and self.state.shards_models:
            return Value(objects=(CONFIGURED_MODEL, *inner), known=False)
        return Value(objects=inner or (LibraryInstance("module"),), known=False)

    def _instance_attribute(
        self,
        frame: Frame,
        instances: tuple[Instance, ...],
        name: str,
        base: Value,
        node: ast.expr,
    ) -> Value | None:
        """Return an attribute, property or method of an instance, which is one of a class."""
        cls = instances[0].cls
        owners = [
            cls,
            *(parent for parent in self.state.symbols.bases(cls) if isinstance(parent, Class)),
        ]
        for attribute in owners:
            self.state.summaries.record_read(attribute, name)
        value = self._stored_value(frame, instances, owners, name)
        if value is not None:
            if any(name in owner.agreed_attributes for owner in owners):
                value = as_uniform(value)
            if any(name in owner.shared_attributes for owner in owners):
                value = without_stamps(value)
            return replace(value, stored_in=((cls, name), *value.stored_in)[:_MAX_STORED_IN])
        method = self.state.symbols.find_method(cls, name)
        if method is None:
            parent = library_base(self.state.symbols, cls)
            if name in library.METHODS.get(parent, {}):
                return Value(objects=(LibraryMethod(LibraryInstance(parent), name, base),))
            return None
        instance = Value(objects=instances, content=base.content)
        if method.decorated_by("property", "cached_property"):
            return self.state.invoke(
                frame, node, FunctionObject(method, None, instance), Arguments()
            )
        return self.runner.decorated_value(
            method, None if method.decorated_by("staticmethod") else instance
        )

    def _stored_value(
        self, frame: Frame, instances: tuple[Instance, ...], owners: list[Class], name: str
    ) -> Value | None:
        """Return an attribute as known here, else as written at these sites, else anywhere."""
        if name == "__dict__":
            return Value(objects=(LibraryInstance(ATTRIBUTES, Value(objects=instances)),))
        facts = known_facts(frame.scope.names)
        heap, symbols = self.state.heap, self.state.symbols
        found = [known_attribute(facts, obj, owners, name) for obj in instances]
        if None in found:
            found = [
                value if value is not None else heap.read(symbols, obj, name)
                for value, obj in zip(found, instances, strict=True)
            ]
        if None in found:
            found = [owner.attributes[name] for owner in owners if name in owner.attributes]
        values = [value for value in found if value is not None]
        value = join_values(values) if values else None
        if value is not None and value.absent and name in instances[0].cls.always_set:
            return replace(value, absent=())
        return value

    @property
    def evaluators(self) -> dict[type[ast.expr], Callable[..., Value]]:
        """Return the method for each kind of expression."""
        return {
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscripts.evaluate,
        }
