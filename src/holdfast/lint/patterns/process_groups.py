"""Find scripts that create an NCCL group without a device or never destroy it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePath

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, argument
from holdfast.lint.sources.modules import Class, Function, Module, SymbolTable

_DEVICE_SELECTION = re.compile(
    r"set_device|CUDA_VISIBLE_DEVICES|device_ids?\b(?!\s*=\s*\[0\])|cuda:(?!0[\"'])|cuda\.device\b"
    r"|device_mesh|\.cuda\((?!0?\))"
)
#: Tensors are created on the rank's GPU; collectives of objects and barriers use the current one.
_TENSOR_DEVICE = re.compile(r"\bdevice\(\s*[\"']cuda[\"'],")
_CURRENT_DEVICE_USE = re.compile(r"_object(?:_list)?\(|barrier\(")
_TEARDOWN = re.compile(r"destroy_process_group|accelerat|lightning|deepspeed|\bray\b|megatron")
#: Maximum number of scripts, and of modules of one script, to check.
_MAX_MODULES = 200
_DEFAULT_DEVICE_USE = re.compile(r"\.cuda\(0?\)|[\"']cuda(?::0)?[\"']")


def find_group_patterns(scopes: Sequence[CodeScope]) -> Iterator[Divergence]:
    """Yield the divergences of a module that creates an NCCL group in a script."""
    creations = [
        (creating_scope, call)
        for creating_scope in scopes
        for call in creating_scope.library_calls("torch.distributed.init_process_group")
        if _uses_nccl(call) and not _is_single(call)
    ]
    if not creations:
        return
    scope, call = creations[0]
    texts = [creating_scope.text for creating_scope in _script_modules(scope)]
    location = scope.location(call)
    if any(map(_DEFAULT_DEVICE_USE.search, texts)) and not _selects_device(texts):
        yield Divergence("no-device", location, location, "", ())
    elif texts and not _ends_in_call(scope.module) and not any(map(_TEARDOWN.search, texts)):
        yield Divergence("not-destroyed", location, location, "", ())


def _selects_device(texts: Sequence[str]) -> bool:
    return any(map(_DEVICE_SELECTION.search, texts)) or (
        any(map(_TENSOR_DEVICE.search, texts)) and not any(map(_CURRENT_DEVICE_USE.search, texts))
    )


def _script_modules(scope: CodeScope) -> list[Module]:
    """Return a script with all its imports; for other modules, the scripts that call them."""
    module, names = scope.module, scope.symbols
    if _is_script(module) or _ends_in_call(module):
        return _with_imports(module, names)
    called = f"{scope.name}("
    modules = []
    for script in islice(filter(_is_script, names.modules.values()), _MAX_MODULES):
        imported = _with_imports(script, names)
        if module in imported and any(
            called in other.text for other in imported if other is not module
        ):
            modules += imported
    return modules


def _uses_nccl(call: ast.Call) -> bool:
    backend = argument(call, 0, "backend")
    return (
        isinstance(backend, ast.Constant)
        and isinstance(backend.value, str)
        and "nccl" in backend.value
    )


def _is_single(call: ast.Call) -> bool:
    """Return True for a group of one rank."""
    size = argument(call, 3, "world_size")
    return isinstance(size, ast.Constant) and size.value == 1


def _is_script(module: Module) -> bool:
    """Return True for a script that is started directly and is not a test."""
    return not PurePath(module.file).name.startswith(("test_", "conftest")) and any(
        isinstance(statement, ast.If)
        and ast.unparse(statement.test).replace("'", '"') == '__name__ == "__main__"'
        for statement in module.tree.body
    )


def _ends_in_call(module: Module) -> bool:
    """Return True for a program whose last line is ``main()``."""
    match module.tree.body[-1:]:
        case [ast.Expr(value=ast.Call(func=ast.Name(id=name)))]:
            return name in module.names
        case _:
            return False


def _with_imports(start: Module, names: SymbolTable) -> list[Module]:
    """Return a module and the program modules it imports, transitively."""
    modules = [start]
    for item in modules:
        for name in item.names if len(modules) < _MAX_MODULES else ():
            definition = names.resolve_member(item, name)
            home = definition.module if isinstance(definition, (Function, Class)) else definition
            if isinstance(home, Module) and home not in modules:
                modules.append(home)
    return modules
