"""Process groups in a script of their own: made without a device, and never taken down."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from holdfast.facts.code.modules import Class, Function, Module
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.passages import Passage, argument

_DEVICE = re.compile(r"set_device|CUDA_VISIBLE_DEVICES|device_id|cuda:|cuda\.device\b|device_mesh|\.cuda\([^)]")
_DOWN = re.compile(r"destroy_process_group|accelerat|lightning|deepspeed|\bray\b|megatron")
_FIRST = re.compile(r"\.cuda\(\)|[\"']cuda[\"']")


def groups(seen: Sequence[Passage]) -> Iterator[Parting]:
    """The partings of one module, where it is a script that makes a group of NCCL."""
    made = [(each, call) for each in seen for call in each.calls("torch.distributed.init_process_group") if _nccl(call)]
    if not made:
        return
    module = made[0][0].module
    if PurePath(module.file).name.startswith(("test_", "conftest")) or not _script(module):
        return
    texts = [_text(each) for each in _with_imports(seen[0])]
    passage, call = made[0]
    place = passage.place(call)
    if _FIRST.search(texts[0]) and not any(map(_DEVICE.search, texts)):
        yield Parting("no-device", place, place, "", ())
    elif not any(map(_DOWN.search, texts)):
        yield Parting("not-taken-down", place, place, "", ())


def _nccl(call: ast.Call) -> bool:
    backend = argument(call, 0, "backend")
    return isinstance(backend, ast.Constant) and isinstance(backend.value, str) and "nccl" in backend.value


def _script(module: Module) -> bool:
    """It is started itself."""
    return any(
        isinstance(each, ast.If) and ast.unparse(each.test).replace("'", '"') == '__name__ == "__main__"'
        for each in module.tree.body
    )


def _text(module: Module) -> str:
    return "\n".join(module.lines)


def _with_imports(passage: Passage) -> list[Module]:
    """The module, and those of the program from which it imports."""
    found = [passage.module]
    for name in passage.module.names:
        thing = passage.entity(ast.Name(name))
        home = thing.module if isinstance(thing, (Function, Class)) else thing
        if isinstance(home, Module) and home not in found:
            found.append(home)
    return found
