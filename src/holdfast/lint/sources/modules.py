"""Modules, classes and functions of a program, and resolution of names across files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.sources.notebooks import Notebook

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: An ``import`` of these is the library, even if a file of the program has that name.
LIBRARIES = sys.stdlib_module_names | {
    "torch",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "deepspeed",
    "transformers",
    "torchmetrics",
    "megatron",
    "horovod",
    "torch_xla",
    "numpy",
    "psutil",
}
_TEST_FOLDERS = frozenset({"test", "tests"})
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False, slots=True)
class Function:
    """A function, method or lambda; ``run_count`` counts the contexts in which it ran.

    ``grown_alike`` are the ids of nodes that add to a container what the other side of a branch
    adds, too; None: not searched.
    """

    name: str
    node: Definition
    module: Module
    owner: Class | None = None
    run_count: int = 0
    grown_alike: set[int] | None = None

    @property
    def parameters(self) -> list[str]:
        """Return the names of the positional parameters."""
        return [arg.arg for arg in (*self.node.args.posonlyargs, *self.node.args.args)]

    def default_of(self, parameter: str) -> ast.expr | None:
        """Return the default of a positional parameter."""
        defaults = self.node.args.defaults
        return dict(zip(reversed(self.parameters), reversed(defaults), strict=False)).get(parameter)

    @property
    def decorators(self) -> list[ast.expr]:
        """Return the decorators, outermost first."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    def decorated_by(self, *names: str) -> bool:
        """Return True if a decorator's last name is one of these."""
        return bool(self.decorators) and any(
            dotted_name(_called_expression(decorator)).rpartition(".")[2] in names
            for decorator in self.decorators
        )


@dataclass(eq=False, slots=True)
class Class:
    """A class of the program; ``attributes`` joins all values written to those of its instances.

    ``always_set`` are attributes that all ranks set to something other than None,
    ``agreed_attributes`` those on which ranks agree: ``self.stop = agree(self.stop)``,
    ``shared_attributes`` those that are set to what ranks have agreed on, at some time.
    """

    name: str
    node: ast.ClassDef
    module: Module
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    always_set: set[str] = field(default_factory=set)
    agreed_attributes: set[str] = field(default_factory=set)
    shared_attributes: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return f"Class({self.name})"


def _find_nothing(_: str) -> None:
    return None


@dataclass(eq=False, slots=True)
class Module:
    """One file. ``names`` are its top-level names; an import is a dotted name.

    ``find_imported`` returns the key of the module that a name means in this one; ``notebook`` is
    the notebook of the file; ``set_by_functions`` what functions write to its ``variables``.
    """

    name: str
    file: str
    tree: ast.Module
    package: str
    names: dict[str, Function | Class | str | ast.expr] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    set_by_functions: dict[str, Value] = field(default_factory=dict)
    star_imports: list[str] = field(default_factory=list)
    find_imported: Callable[[str], str | None] = _find_nothing
    text: str = ""
    notebook: Notebook | None = None
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        for statement in _iter_top_level(self.tree.body):
            self._add_statement(statement)

    def _add_statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import():
                for alias in statement.names:
                    self.names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            case ast.ImportFrom():
                home = absolute_module(self, statement)
                for alias in statement.names:
                    if alias.name == "*":
                        self.star_imports.append(home)
                    else:
                        self.names[alias.asname or alias.name] = (
                            f"{home}.{alias.name}" if home else alias.name
                        )
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.names[statement.name] = Function(statement.name, statement, self)
            case ast.ClassDef():
                self.names[statement.name] = make_class(statement, self)
            case _:
                pass

    def release(self) -> None:
        """Break reference cycles."""
        for obj in self.names.values():
            if isinstance(obj, Class):
                obj.methods.clear()
                obj.attributes.clear()
        self.names.clear()
        self.variables.clear()
        self.set_by_functions.clear()
        self.find_imported = _find_nothing
        self.tree = ast.Module([], [])

    @property
    def is_test(self) -> bool:
        """Return True if the module tests the program rather than being part of it."""
        *folders, last = self.name.split(".")
        return (
            last.startswith(("test_", "conftest"))
            or last.endswith("_test")
            or bool(_TEST_FOLDERS & set(folders))
        )

    def functions(self) -> Iterator[Function]:
        """Yield all top-level functions and methods."""
        for obj in self.names.values():
            if isinstance(obj, Function) and obj.module is self:
                yield obj
            elif isinstance(obj, Class) and obj.module is self:
                yield from obj.methods.values()


def make_class(node: ast.ClassDef, module: Module) -> Class:
    """Return the class that a statement defines."""
    cls = Class(node.name, node, module)
    for statement in _iter_top_level(node.body):
        if isinstance(statement, FUNCTIONS):
            cls.methods.setdefault(statement.name, Function(statement.name, statement, module, cls))
    return cls


def absolute_module(module: Module, statement: ast.ImportFrom) -> str:
    """Return the absolute module name of a ``from … import``."""
    if not statement.level:
        return statement.module or ""
    parts = module.package.split(".") if module.package else []
    parts = parts[: len(parts) - (statement.level - 1)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _iter_top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a block, including those under ``if`` and ``try``."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _iter_top_level(statement.body)
            yield from _iter_top_level(statement.orelse)
        elif isinstance(statement, ast.Try):
            for block in (
                statement.body,
                *(handler.body for handler in statement.handlers),
                statement.orelse,
            ):
                yield from _iter_top_level(block)


def dotted_name(node: ast.expr | None) -> str:
    """Return ``a.b.c`` as written; empty if the expression is not a dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""


def last_name(node: ast.expr | None) -> str:
    """Return the last part of a name: ``submit`` for ``pool.submit``."""
    return node.attr if isinstance(node, ast.Attribute) else dotted_name(node)


def is_class_name(name: str) -> bool:
    """Return True if the last part of a dotted name is capitalized like a class."""
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def _called_expression(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


class SymbolTable:
    """Resolves dotted names in a program of several modules."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self._by_tail: dict[str, Module | None] = {}  # None: ambiguous
        self._bases: dict[Class, tuple[Class | str, ...]] = {}
        self._owners: dict[str, Class | None] = {}  # None: ambiguous
        for name, module in modules.items():
            tail = name.rpartition(".")[2]
            self._by_tail[tail] = None if tail in self._by_tail else module

    def resolve(self, name: str, depth: int = 0) -> Function | Class | Module | str:
        """Resolve an absolute dotted name; return the canonical name for a library's."""
        if name in self.modules:
            return self.modules[name]
        home, _, last = name.rpartition(".")
        if home and depth < 8:
            owner = self.resolve(home, depth + 1)
            if isinstance(owner, Module):
                return self.resolve_member(owner, last, depth)
            if isinstance(owner, Class):
                return self.find_method(owner, last) or name
            if isinstance(owner, str) and owner != home:
                return canonical_name(f"{owner}.{last}")
        else:
            module = self._by_tail.get(name) if not home and name not in LIBRARIES else None
            if module is not None:
                return module
        return canonical_name(name)

    def resolve_member(
        self, module: Module, name: str, depth: int = 0
    ) -> Function | Class | Module | str:
        """Resolve a name of a module, through re-exports."""
        definition = module.names.get(name)
        if isinstance(definition, str):
            definition = _resolve_imported(module, definition)
        if isinstance(definition, str) and depth < 8:
            if definition == f"{module.name}.{name}":
                return definition
            return self.resolve(definition, depth + 1)
        if isinstance(definition, (Function, Class)):
            return definition
        inner = self.modules.get(f"{module.name}.{name}")
        return inner if inner is not None else f"{module.name}.{name}"

    def bases(self, owner: Class) -> tuple[Class | str, ...]:
        """Return the bases of a class, transitively; library classes by name."""
        known = self._bases.get(owner)
        if known is None:
            known = self._bases[owner] = tuple(self._find_bases(owner))
        return known

    def _find_bases(self, owner: Class) -> Iterator[Class | str]:
        visited = {owner}
        pending = [owner]
        while pending:
            cls = pending.pop(0)
            for base in cls.node.bases:
                name = dotted_name(base.value if isinstance(base, ast.Subscript) else base)
                if not name:
                    continue
                first, _, rest = name.partition(".")
                definition = self.resolve_member(cls.module, first)
                if rest and isinstance(definition, Module):
                    definition = self.resolve(f"{definition.name}.{rest}")
                elif rest:
                    definition = (
                        canonical_name(f"{definition}.{rest}")
                        if isinstance(definition, str)
                        else definition
                    )
                if isinstance(definition, Class):
                    if definition not in visited:
                        visited.add(definition)
                        pending.append(definition)
                        yield definition
                elif isinstance(definition, str):
                    yield definition

    def only_owner(self, name: str) -> Class | None:
        """Return the only class, tests excluded, with a method or property of that name."""
        if not self._owners:
            modules = [module for module in self.modules.values() if not module.is_test]
            for function in (candidate for module in modules for candidate in module.functions()):
                if function.owner is not None:
                    is_shared = function.name in self._owners
                    self._owners[function.name] = None if is_shared else function.owner
        return self._owners.get(name)

    def annotated_class(self, function: Function, name: str) -> Class | None:
        """Return the program class in a parameter's annotation."""
        definition = self.annotation(function, name)
        return definition if isinstance(definition, Class) else None

    def annotation(self, function: Function, name: str) -> Function | Class | Module | str | None:
        """Return what a parameter's annotation names: a library's class by its canonical name."""
        arguments = function.node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        written = next((parameter.annotation for parameter in every if parameter.arg == name), None)
        text = written.value if isinstance(written, ast.Constant) else dotted_name(written)
        if not isinstance(text, str) or not text:
            return None
        first, _, rest = text.partition(".")
        definition = self.resolve_member(function.module, first)
        if rest and isinstance(definition, Module):
            return self.resolve(f"{definition.name}.{rest}")
        if isinstance(definition, str):
            return canonical_name(f"{definition}.{rest}" if rest else definition)
        return definition

    def find_method(self, owner: Class, name: str) -> Function | None:
        """Return a method of the class or its nearest base."""
        if name in owner.methods:
            return owner.methods[name]
        for base in self.bases(owner):
            if isinstance(base, Class) and name in base.methods:
                return base.methods[name]
        return None


def _resolve_imported(module: Module, name: str) -> str:
    """Resolve a name to the module that it means here: two folders may each have a ``main``."""
    home, rest = name, ""
    while home:
        key = module.find_imported(home)
        if key is not None:
            return f"{key}.{rest}" if rest else key
        home, _, last = home.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    return name


@lru_cache(maxsize=1 << 14)
def canonical_name(name: str) -> str:
    """Return one spelling for names that libraries export in several modules."""
    for longer, shorter in (
        ("torch.distributed.distributed_c10d.", "torch.distributed."),
        ("torch.distributed.fsdp.fully_sharded_data_parallel.", "torch.distributed.fsdp."),
        ("torch.distributed.checkpoint.state_dict_saver.", "torch.distributed.checkpoint."),
        ("torch.distributed.checkpoint.state_dict_loader.", "torch.distributed.checkpoint."),
        ("torch.distributed.fsdp._fully_shard.", "torch.distributed.fsdp."),
        ("torch.distributed._composable.fsdp.", "torch.distributed.fsdp."),
        ("accelerate.utils.operations.", "accelerate.utils."),
        ("deepspeed.comm.comm.", "deepspeed.comm."),
        ("deepspeed.runtime.zero.", "deepspeed.zero."),
        ("mmengine.dist.dist.", "mmengine.dist."),
        ("mmengine.dist.utils.", "mmengine.dist."),
        ("lightning.pytorch.utilities.", "lightning.utilities."),
        ("pytorch_lightning.utilities.", "lightning.utilities."),
    ):
        if name.startswith(longer):
            return shorter + name[len(longer) :]
    return name
