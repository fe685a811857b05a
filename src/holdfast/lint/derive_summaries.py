"""Derive what the public functions of installed libraries do: ``make summaries``.

The interpreter runs over the source of each library, and every public function and method is
summarized as called with its defaults: whether it enters a collective whichever rank calls it, and
whether all ranks get the same result. What only some ranks enter, and what depends on an argument,
is left out, because a wrong summary causes false findings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from holdfast.core.gc_pause import gc_paused
from holdfast.lint.abstract_domain.effects import (
    Branch,
    Effect,
    ExitEffect,
    FunctionCall,
    GroupScope,
    LoopEffect,
    Operation,
    Try,
)
from holdfast.lint.abstract_state.frames import FunctionSummary
from holdfast.lint.interpreter.programs import Program
from holdfast.lint.library_summaries import (
    FILE,
    CallSummary,
    ExportedClass,
    ExportedFunction,
    LibrarySummaries,
)
from holdfast.lint.rules.edits import iter_own_nodes
from holdfast.lint.sources.files import gather_files, parse_files
from holdfast.lint.sources.modules import Class, Function, Module, SymbolTable, last_name

#: A test of what all ranks have in common: the state of the job, rather than an argument.
_STATE_TEST = re.compile(
    r"initialized|is_available|distributed|world_size|num_processes|use_dist|num_nodes|strategy"
    r"|parallel|device_type|backend|process_group|\bmesh\b|fsdp|deepspeed",
    re.IGNORECASE,
)
#: Tests of a backend that few jobs use: only the other side of the branch counts.
_RARE_BACKEND = re.compile(r"xla|tpu", re.IGNORECASE)
_MESSAGES = ("send", "recv")
_GROUP_PARAMETERS = frozenset({"group", "process_group"})
#: Functions that a library calls itself.
_INTERNAL = re.compile(r"^(on_|check_forward|test_|setup)|hook$|^(forward|backward)$")
#: Reviewed and left out: modelled by hand, as it shards a model in place; of a callback, which
#: Lightning calls; gathers the shapes of a tensor for debugging; runs one forward pass in
#: evaluation mode, in which DDP waits for no rank.
_REJECTED = frozenset({"fully_shard", "file_exists", "gather_tensor_shape", "prediction_step"})
#: Flags with which no collective is entered, whatever the analysis finds.
_DISABLING = {"no_dist": True}
_SHARDED_IO = re.compile(r"(save|load)(_|$)|\w*state_dict$")


class Library(msgspec.Struct, frozen=True):
    """An installed distribution, and the folders and files of it that are analyzed together.

    ``is_lazy``: its package exports all public names, by ``__getattr__``.
    """

    name: str
    paths: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    is_lazy: bool = False


LIBRARIES = (
    Library(
        "torch",
        tuple(f"distributed/{part}" for part in ("checkpoint", "fsdp", "tensor", "optim")),
    ),
    Library("accelerate", (".",), ("test_utils", "commands")),
    Library(
        "torchmetrics",
        ("metric.py", "aggregation.py", "collections.py", "utilities", "wrappers"),
    ),
    Library("lightning", ("pytorch", "fabric", "__init__.py"), ("cli.py",)),
    Library(
        "transformers",
        ("trainer.py", "trainer_utils.py", "trainer_pt_utils.py", "trainer_seq2seq.py"),
        is_lazy=True,
    ),
    Library(
        "deepspeed",
        ("__init__.py", "runtime/engine.py", "runtime/utils.py", "runtime/pipe", "utils"),
        ("dualpipev.py",),
    ),
)


def library_program(library: Library) -> dict[str, Module]:
    """Return the modules of a library."""
    spec = find_spec(library.name)
    if spec is None or spec.origin is None:
        return {}
    home = Path(spec.origin).parent

    def is_excluded(path: Path) -> bool:
        return any(part in library.excluded for part in path.parts)

    files = gather_files([home / path for path in library.paths], is_excluded).files
    return parse_files(files).modules


def is_public(function: Function) -> bool:
    """Return True for a function or method whose name, class and module are public."""
    names = [function.name] if function.owner is None else [function.name, function.owner.name]
    return not any(name.startswith("_") for name in names)


def first_collective(path: Sequence[Effect]) -> Operation | None:
    """Return the first collective that every rank enters."""
    one_sided: dict[str, Branch] = {}
    for effect in path:
        found = _collective_of(effect)
        if found is not None:
            return found
        if isinstance(effect, ExitEffect):
            return None
        if isinstance(effect, Branch) and effect.taint:
            found = first_collective(effect.yes) or first_collective(effect.no)
            earlier = one_sided.get(found.name) if found is not None else None
            if earlier is not None and _are_complements(earlier.text, effect.text):
                return found  # one rank enters it before, the others after, what follows the first
            if found is not None:
                one_sided[found.name] = effect
    return None


def _are_complements(one: str, other: str) -> bool:
    """Return True for ``if is_main`` and ``if not is_main``."""
    return one != other and one.replace("not ", "") == other.replace("not ", "")


def _collective_of(effect: Effect) -> Operation | None:
    match effect:
        case Operation():
            return effect if _is_of_all_ranks(effect) else None
        case FunctionCall(callee=callee):
            return first_collective(callee.path)
        case Branch():
            return _collective_of_branch(effect)
        case LoopEffect():
            return first_collective(effect.body) or first_collective(effect.orelse)
        case Try():
            return first_collective(effect.body) or first_collective(effect.final_body)
        case _:
            return None


def _collective_of_branch(branch: Branch) -> Operation | None:
    sides = [first_collective(side) for side in (branch.yes, branch.no)]
    if branch.taint:
        return sides[0] if None not in sides else None
    if _RARE_BACKEND.search(branch.text) is not None:
        is_negated = re.match(r"(el)?if not [^ ]+$", branch.text) is not None
        return sides[not is_negated]
    entered = [side for side in sides if side is not None]
    is_state = _STATE_TEST.search(branch.text) is not None
    return entered[0] if len(entered) == 2 or (entered and is_state) else None


def _is_of_all_ranks(operation: Operation) -> bool:
    return operation.kind not in _MESSAGES and operation.group is not GroupScope.SUB


def library_summaries(libraries: Iterable[Library]) -> LibrarySummaries:
    """Return the summaries of these libraries."""
    versions = {}
    functions: list[ExportedFunction] = []
    classes: list[ExportedClass] = []
    for library in libraries:
        modules = library_program(library)
        if modules:
            versions[library.name] = version(library.name).partition("+")[0]
            with gc_paused():
                derived = derive(modules)
            exports = _exporting_modules(modules, library)
            functions += _exported_functions(derived, exports)
            classes += _exported_classes(derived, exports, SymbolTable(modules))
    return LibrarySummaries(
        versions,
        tuple(sorted(functions, key=lambda exported: (exported.modules, exported.call.name))),
        tuple(sorted(classes, key=lambda exported: (exported.modules, exported.name))),
    )


def derive(modules: Mapping[str, Module]) -> dict[Function, CallSummary]:
    """Return the summaries of the public functions and methods that enter a collective."""
    functions = [
        function
        for module in modules.values()
        for function in module.functions()
        if is_public(function)
        and function.name not in _REJECTED
        and not _INTERNAL.search(function.name)
        and not _RARE_BACKEND.search(module.name)
    ]

    def enters(summary: FunctionSummary) -> bool:
        return first_collective(summary.effects.path) is not None

    derived = {}
    for function, summaries in Program(modules).summarize(functions, enters).items():
        operation = first_collective(summaries[""].effects.path)
        if operation is not None and _names_its_group(function, operation):
            derived[function] = _call_summary(function, operation, summaries)
    return derived


def _names_its_group(function: Function, operation: Operation) -> bool:
    """Return True if all ranks enter it, or the members of a group that is an argument."""
    named = not _GROUP_PARAMETERS.isdisjoint(_parameters(function))
    return named or operation.group is GroupScope.WORLD


def _call_summary(
    function: Function, operation: Operation, summaries: Mapping[str, FunctionSummary]
) -> CallSummary:
    value = summaries[""].value
    is_equal = value.agreed or (value.known and _returns_value(function))
    is_io = operation.kind == "sharded" or _SHARDED_IO.match(function.name) is not None
    return CallSummary(
        function.name,
        operation.name,
        "sharded" if is_io else "collective",
        is_equal and not value.content,
        tuple(_parameters(function)),
        {
            name: _opposite_of_default(function, name)
            for name, summary in summaries.items()
            if name and first_collective(summary.effects.path) is None
        }
        | {name: value for name, value in _DISABLING.items() if name in summaries},
    )


def _returns_value(function: Function) -> bool:
    return any(
        isinstance(node, ast.Return) and node.value is not None
        for node in iter_own_nodes(function.node)
    )


def _opposite_of_default(function: Function, flag: str) -> bool:
    """Return the value of a flag that is not its default."""
    arguments = function.node.args
    keywords = {
        parameter.arg: default
        for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    }
    default = keywords.get(flag) or function.default_of(flag)
    return not (isinstance(default, ast.Constant) and default.value)


def _parameters(function: Function) -> list[str]:
    names = [*function.parameters, *(each.arg for each in function.node.args.kwonlyargs)]
    is_bound = function.owner is not None and not function.decorated_by("staticmethod")
    return names[1:] if is_bound else names


def _exporting_modules(
    modules: Mapping[str, Module], library: Library
) -> dict[Function | Class, tuple[str, ...]]:
    """Return the public modules from which each function and class can be imported."""
    symbols = SymbolTable(modules)
    exports: dict[Function | Class, list[str]] = {}
    for module in modules.values():
        if any(part.startswith("_") for part in module.name.split(".")):
            continue
        is_package = Path(module.file).stem == "__init__"
        for name in module.names:
            found = symbols.resolve_member(module, name)
            if not isinstance(found, (Function, Class)):
                continue
            if is_package or found.module is module:
                homes = exports.setdefault(found, [])
                homes += [module.name, *([library.name] if library.is_lazy and not homes else [])]
    return {found: tuple(names) for found, names in exports.items()}


def _exported_functions(
    derived: Mapping[Function, CallSummary], exports: Mapping[Function | Class, tuple[str, ...]]
) -> Iterator[ExportedFunction]:
    for function, call in derived.items():
        if function.owner is None and function in exports:
            yield ExportedFunction(exports[function], call)


def _exported_classes(
    derived: Mapping[Function, CallSummary],
    exports: Mapping[Function | Class, tuple[str, ...]],
    symbols: SymbolTable,
) -> Iterator[ExportedClass]:
    for cls, homes in exports.items():
        if not isinstance(cls, Class) or cls.name.startswith("_"):
            continue
        owners = [cls, *(base for base in symbols.bases(cls) if isinstance(base, Class))]
        methods: dict[str, Function] = {}
        for owner in reversed(owners):
            methods |= owner.methods
        calls = [derived[method] for method in methods.values() if method in derived]
        if calls:
            returning = [name for name, method in methods.items() if returns_self(cls, method)]
            yield ExportedClass(
                cls.name,
                homes,
                tuple(sorted(calls, key=lambda call: call.name)),
                tuple(sorted(returning)),
            )


def returns_self(cls: Class, method: Function) -> bool:
    """Return True for the annotation ``-> Self``, or the class itself."""
    written = None if isinstance(method.node, ast.Lambda) else method.node.returns
    text = written.value if isinstance(written, ast.Constant) else last_name(written)
    is_public_method = not method.name.startswith("_")
    return (
        is_public_method
        and text in ("Self", cls.name)
        and not method.decorated_by("classmethod", "staticmethod")
    )


def main() -> None:
    """Write the summaries of the installed libraries."""
    summaries = library_summaries(LIBRARIES)
    text = msgspec.json.format(msgspec.json.encode(summaries), indent=1)
    FILE.write_bytes(text + b"\n")
    functions, classes = summaries.functions, summaries.classes
    methods = sum(len(exported.methods) for exported in classes)
    print(f"{len(functions)} functions, {methods} methods of {len(classes)} classes: {FILE}")  # noqa: T201


if __name__ == "__main__":
    main()
