"""Process groups in a script of their own: made without a device, and never taken down."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePath

from holdfast.facts.code.habits.passages import Passage, argument
from holdfast.facts.code.modules import Class, Function, Module, Names
from holdfast.facts.code.partings import Parting

_DEVICE = re.compile(r"set_device|CUDA_VISIBLE_DEVICES|device_id|cuda:|cuda\.device\b|device_mesh|\.cuda\([^)]")
_DOWN = re.compile(r"destroy_process_group|accelerat|lightning|deepspeed|\bray\b|megatron")
#: So many scripts, and so many modules of one, are looked at.
_MOST = 200
_FIRST = re.compile(r"\.cuda\(\)|[\"']cuda[\"']")


def groups(seen: Sequence[Passage]) -> Iterator[Parting]:
    """The partings of one module that makes a group of NCCL, where it is a script, or a script calls it."""
    made = [(each, call) for each in seen for call in each.calls("torch.distributed.init_process_group") if _nccl(call)]
    if not made:
        return
    passage, call = made[0]
    texts = [each.text for each in _started(passage)]
    place = passage.place(call)
    if any(map(_FIRST.search, texts)) and not any(map(_DEVICE.search, texts)):
        yield Parting("no-device", place, place, "", ())
    elif texts and not any(map(_DOWN.search, texts)):
        yield Parting("not-taken-down", place, place, "", ())


def _started(passage: Passage) -> list[Module]:
    """The script, and all that it imports; of a module that is none, the scripts that call the function in it."""
    module, names = passage.module, passage.names
    if _script(module):
        return _with_imports(module, names)
    called = f"{passage.name}("
    found = []
    for script in islice(filter(_script, names.modules.values()), _MOST):
        read = _with_imports(script, names)
        if module in read and any(called in each.text for each in read if each is not module):
            found += read
    return found


def _nccl(call: ast.Call) -> bool:
    backend = argument(call, 0, "backend")
    return isinstance(backend, ast.Constant) and isinstance(backend.value, str) and "nccl" in backend.value


def _script(module: Module) -> bool:
    """It is started itself, and by no test."""
    return not PurePath(module.file).name.startswith(("test_", "conftest")) and any(
        isinstance(each, ast.If) and ast.unparse(each.test).replace("'", '"') == '__name__ == "__main__"'
        for each in module.tree.body
    )


def _with_imports(module: Module, names: Names) -> list[Module]:
    """The module, and those of the program that it imports, and these in turn."""
    found = [module]
    for each in found:
        for name in each.names if len(found) < _MOST else ():
            thing = names.member(each, name)
            home = thing.module if isinstance(thing, (Function, Class)) else thing
            if isinstance(home, Module) and home not in found:
                found.append(home)
    return found
