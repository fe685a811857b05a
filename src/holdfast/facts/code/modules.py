"""Names of a program: modules, the classes and functions in them, and what a name means, across files."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from holdfast.facts.code.notebooks import Notebook
from holdfast.facts.code.values import Value

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: An ``import`` of these means the library, whatever file of the program has the same name in some package.
LIBRARIES = sys.stdlib_module_names | {
    "torch", "accelerate", "lightning", "pytorch_lightning", "lightning_fabric", "deepspeed", "transformers",
    "torchmetrics", "megatron", "numpy", "psutil",
}  # fmt: skip
_TESTS = frozenset({"test", "tests"})
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False, slots=True)
class Function:
    """A function, method or lambda, where it is written; ``seen`` counts in how many contexts it was run."""

    name: str
    node: Definition
    module: Module
    owner: Class | None = None
    seen: int = 0

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that can be given by position."""
        return [each.arg for each in (*self.node.args.posonlyargs, *self.node.args.args)]

    @property
    def decorators(self) -> list[ast.expr]:
        """Its decorators, the outermost first."""
        return [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list

    def decorated_by(self, *names: str) -> bool:
        """One of its decorators ends in one of these names."""
        return any(dotted(_called(each)).rpartition(".")[2] in names for each in self.decorators)


@dataclass(eq=False, slots=True)
class Class:
    """A class of the program; ``attributes`` are those of its instances, over all that write them.

    ``steady`` are those that all ranks give something besides None at some place, ``settled`` those on which ranks
    agree at some place: ``self.stop = agree(self.stop)``.
    """

    name: str
    node: ast.ClassDef
    module: Module
    methods: dict[str, Function] = field(default_factory=dict)
    attributes: dict[str, Value] = field(default_factory=dict)
    steady: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return f"Class({self.name})"


@dataclass(eq=False, slots=True)
class Module:
    """One file. ``names`` are those of its top level; what is imported is a dotted name.

    ``siblings`` are the modules that are imported from the same folder, by the name they have there; ``notebook`` is
    what the file was made of.
    """

    name: str
    file: str
    tree: ast.Module
    package: str
    names: dict[str, Function | Class | str | ast.expr] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    siblings: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    notebook: Notebook | None = None
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.text.split("\n")
        for statement in _top_level(self.tree.body):
            self._take(statement)

    def _take(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import():
                for alias in statement.names:
                    self.names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            case ast.ImportFrom():
                home = absolute(self, statement)
                for alias in statement.names:
                    if alias.name == "*":
                        self.stars.append(home)
                    else:
                        self.names[alias.asname or alias.name] = f"{home}.{alias.name}" if home else alias.name
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.names[statement.name] = Function(statement.name, statement, self)
            case ast.ClassDef():
                self.names[statement.name] = class_of(statement, self)
            case _:
                pass

    def take_apart(self) -> None:
        """Let go of what refers to the module again."""
        for thing in self.names.values():
            if isinstance(thing, Class):
                thing.methods.clear()
                thing.attributes.clear()
        self.names.clear()
        self.variables.clear()
        self.siblings = {}
        self.tree = ast.Module([], [])

    @property
    def tests(self) -> bool:
        """It tests the program, and is no part of it."""
        *folders, last = self.name.split(".")
        return last.startswith(("test_", "conftest")) or last.endswith("_test") or bool(_TESTS & set(folders))

    def functions(self) -> Iterator[Function]:
        """All functions and methods of the top level."""
        for thing in self.names.values():
            if isinstance(thing, Function) and thing.module is self:
                yield thing
            elif isinstance(thing, Class) and thing.module is self:
                yield from thing.methods.values()


def class_of(node: ast.ClassDef, module: Module) -> Class:
    """The class that a statement defines."""
    made = Class(node.name, node, module)
    for statement in _top_level(node.body):
        if isinstance(statement, FUNCTIONS):
            made.methods.setdefault(statement.name, Function(statement.name, statement, module, made))
    return made


def absolute(module: Module, statement: ast.ImportFrom) -> str:
    """The module that ``from … import`` names, dots counted."""
    if not statement.level:
        return statement.module or ""
    parts = module.package.split(".") if module.package else []
    parts = parts[: len(parts) - (statement.level - 1)]
    return ".".join([*parts, *([statement.module] if statement.module else [])])


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a block, those under ``if`` and ``try`` (versions, optional imports) too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If):
            yield from _top_level(statement.body)
            yield from _top_level(statement.orelse)
        elif isinstance(statement, ast.Try):
            for block in (statement.body, *(each.body for each in statement.handlers), statement.orelse):
                yield from _top_level(block)


def dotted(node: ast.expr | None) -> str:
    """``a.b.c`` as it is written; empty for what is no plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
        return ".".join(reversed(parts))
    return ""


def last_name(node: ast.expr | None) -> str:
    """The last part of what is named: ``submit`` of ``pool.submit``, ``result`` of ``pool.submit(f).result`` too."""
    return node.attr if isinstance(node, ast.Attribute) else dotted(node)


def is_class_name(name: str) -> bool:
    """The last part of a dotted name is written as classes are."""
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


class Names:
    """What a dotted name means in a program of several modules."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self._by_tail: dict[str, Module | None] = {}  # None: several have that name
        self._bases: dict[Class, tuple[Class | str, ...]] = {}
        self._owners: dict[str, Class | None] = {}  # None: several have it
        for name, module in modules.items():
            tail = name.rpartition(".")[2]
            self._by_tail[tail] = None if tail in self._by_tail else module

    def find(self, name: str, depth: int = 0) -> Function | Class | Module | str:
        """The entity that an absolute dotted name means; the canonical name where it is of a library."""
        if name in self.modules:
            return self.modules[name]
        home, _, last = name.rpartition(".")
        if home and depth < 8:
            owner = self.find(home, depth + 1)
            if isinstance(owner, Module):
                return self.member(owner, last, depth)
            if isinstance(owner, Class):
                return self.method(owner, last) or name
            if isinstance(owner, str) and owner != home:
                return canonical(f"{owner}.{last}")
        else:
            module = self._by_tail.get(name) if not home and name not in LIBRARIES else None
            if module is not None:
                return module
        return canonical(name)

    def member(self, module: Module, name: str, depth: int = 0) -> Function | Class | Module | str:
        """What a module's name means, through re-exports."""
        found = module.names.get(name)
        if isinstance(found, str) and module.siblings:
            found = _beside(module, found)
        if isinstance(found, str) and depth < 8:
            if found == f"{module.name}.{name}":
                return found
            return self.find(found, depth + 1)
        if isinstance(found, (Function, Class)):
            return found
        inner = self.modules.get(f"{module.name}.{name}")
        return inner if inner is not None else f"{module.name}.{name}"

    def bases(self, owner: Class) -> tuple[Class | str, ...]:
        """The bases of a class, as far up as the program goes; library classes by name."""
        found = self._bases.get(owner)
        if found is None:
            found = self._bases[owner] = tuple(self._find_bases(owner))
        return found

    def _find_bases(self, owner: Class) -> Iterator[Class | str]:
        seen = {owner}
        waiting = [owner]
        while waiting:
            one = waiting.pop(0)
            for base in one.node.bases:
                name = dotted(base.value if isinstance(base, ast.Subscript) else base)
                if not name:
                    continue
                first, _, rest = name.partition(".")
                found = self.member(one.module, first)
                if rest and isinstance(found, Module):
                    found = self.find(f"{found.name}.{rest}")
                elif rest:
                    found = canonical(f"{found}.{rest}") if isinstance(found, str) else found
                if isinstance(found, Class):
                    if found not in seen:
                        seen.add(found)
                        waiting.append(found)
                        yield found
                elif isinstance(found, str):
                    yield found

    def only_owner(self, name: str) -> Class | None:
        """The class that alone in the program has a method or property of that name; tests are not asked."""
        if not self._owners:
            modules = [module for module in self.modules.values() if not module.tests]
            for function in (each for module in modules for each in module.functions()):
                if function.owner is not None:
                    several = function.name in self._owners
                    self._owners[function.name] = None if several else function.owner
        return self._owners.get(name)

    def annotated(self, function: Function, name: str) -> Class | None:
        """The class of the program that a parameter is said to be an instance of."""
        arguments = function.node.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        written = next((each.annotation for each in every if each.arg == name), None)
        text = written.value if isinstance(written, ast.Constant) else dotted(written)
        if not isinstance(text, str) or not text:
            return None
        first, _, rest = text.partition(".")
        found = self.member(function.module, first)
        if rest and isinstance(found, Module):
            found = self.find(f"{found.name}.{rest}")
        return found if isinstance(found, Class) else None

    def method(self, owner: Class, name: str) -> Function | None:
        """The method of that name, of the class or the nearest base."""
        if name in owner.methods:
            return owner.methods[name]
        for base in self.bases(owner):
            if isinstance(base, Class) and name in base.methods:
                return base.methods[name]
        return None


def _beside(module: Module, name: str) -> str:
    """A name with the module of the same folder in it, where there is one: two folders may each have a ``main``."""
    home, rest = name, ""
    while home:
        if home in module.siblings:
            return f"{module.siblings[home]}.{rest}" if rest else module.siblings[home]
        home, _, last = home.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    return name


@lru_cache(maxsize=1 << 14)
def canonical(name: str) -> str:
    """One spelling for names that libraries export at several places."""
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
        ("lightning.pytorch.utilities.", "lightning.utilities."),
        ("pytorch_lightning.utilities.", "lightning.utilities."),
    ):
        if name.startswith(longer):
            return shorter + name[len(longer) :]
    return name
