"""The model in a file of torch.save, whatever it is called: a state_dict, one among other things, or a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Gap, Tensor
from holdfast.facts.checkpoints.files.torch_pickle import Opaque, TensorAt
from holdfast.facts.checkpoints.state_dicts.values import Source

#: What people call a model's state_dict, the most usual first.
KEYS = ("model", "state_dict", "model_state_dict", "module", "model_state", "net", "network", "weights", "params")
_DEEPEST = 40


class Model(msgspec.Struct):
    """The tensors of a model by name. ``rest`` are entries of its state_dict that are no tensors."""

    tensors: dict[str, Tensor] = msgspec.field(default_factory=dict)
    ties: dict[str, str] = msgspec.field(default_factory=dict)
    frozen: set[str] = msgspec.field(default_factory=set)
    buffers: set[str] = msgspec.field(default_factory=set)
    rest: dict[str, Any] = msgspec.field(default_factory=dict)
    gaps: list[Gap] = msgspec.field(default_factory=list)


class _Entry(msgspec.Struct, frozen=True):
    name: str
    value: Any
    buffer: bool = False
    parameter: bool = False


def key_of(value: Mapping[Any, Any]) -> str | None:
    """Under which key of a file's value its model is; None: the value is the state_dict itself, or holds none."""
    for key in KEYS:
        if key in value and holds_tensors(value[key]):
            return key
    if any(isinstance(each, TensorAt) for each in value.values()):
        return None
    counts = {key: _count(each) for key, each in value.items() if isinstance(key, str)}
    best = max(counts, key=lambda key: counts[key], default=None)
    return best if best is not None and counts[best] else None


def holds_tensors(value: Any) -> bool:
    """It is a state_dict, or a module."""
    return _count(value, most=1) > 0


def model_of(source: Source, value: Any) -> Model:
    """The tensors of a state_dict or a module; what cannot be there is a gap."""
    made = Model()
    first: dict[tuple[Any, ...], str] = {}
    for entry in _entries(value, "", 0):
        name, found = entry.name, entry.value
        if not isinstance(found, TensorAt):
            made.rest[name] = found
            continue
        place = (found.storage.key, found.dtype, found.offset, found.shape, found.strides)
        if 0 not in found.shape and first.setdefault(place, name) != name:
            made.ties[name] = first[place]
            continue
        try:
            made.tensors[name] = source.tensor(name, found)
        except CheckpointUnreadable as error:
            made.gaps.append(Gap(kind="truncated", file=source.name, why=f"{name}: {error.why}"))
            continue
        if entry.buffer:
            made.buffers.add(name)
        elif entry.parameter and not found.requires_grad:
            made.frozen.add(name)
    return made


def _entries(value: Any, prefix: str, depth: int) -> Iterator[_Entry]:
    """What a state_dict or module holds, in order; dicts in a state_dict are parts of it."""
    if isinstance(value, Opaque) and depth < _DEEPEST:
        yield from _of_module(value, prefix, depth)
        return
    for key, each in value.items() if isinstance(value, Mapping) else ():
        if isinstance(each, Mapping) and depth < _DEEPEST and holds_tensors(each):
            yield from _entries(each, f"{prefix}{key}.", depth + 1)
        else:
            yield _Entry(f"{prefix}{key}", each)


def _of_module(module: Opaque, prefix: str, depth: int) -> Iterator[_Entry]:
    """As ``Module.state_dict()`` goes through a module (torch/nn/modules/module.py): parameters, buffers, children."""
    parts = _parts(module)
    for key, each in _items(parts, "_parameters"):
        yield _Entry(f"{prefix}{key}", each, parameter=True)
    hidden = parts.get("_non_persistent_buffers_set")
    for key, each in _items(parts, "_buffers"):
        if key not in (hidden if isinstance(hidden, (set, frozenset)) else ()):
            yield _Entry(f"{prefix}{key}", each, buffer=True)
    for key, each in _items(parts, "_modules"):
        if isinstance(each, Opaque) and depth < _DEEPEST:
            yield from _of_module(each, f"{prefix}{key}.", depth + 1)


def _items(parts: Mapping[str, Any], kind: str) -> list[tuple[str, Any]]:
    found = parts.get(kind)
    return [(key, each) for key, each in found.items() if each is not None] if isinstance(found, Mapping) else []


def _parts(module: Opaque) -> Mapping[str, Any]:
    state = vars(module)["state"]
    return state if isinstance(state, Mapping) else {}


def _count(value: Any, depth: int = 0, most: int = 1 << 30) -> int:
    """Tensors in a state_dict or module, up to ``most``."""
    if isinstance(value, TensorAt):
        return int(depth > 0)
    if depth > _DEEPEST or not isinstance(value, (Mapping, Opaque)):
        return 0
    if isinstance(value, Opaque):
        return sum(1 for _ in zip(range(most), _of_module(value, "", depth), strict=False))
    found = 0
    for each in value.values():
        found += _count(each, depth + 1, most - found)
        if found >= most:
            break
    return found
