"""Finds the model in a torch.save file: a state_dict, one among other entries, or a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.ckpt.contents import FileProblem, Tensor
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.state_dicts.values import TorchSource
from holdfast.core.errors import CheckpointUnreadable

#: Common keys of a model's state_dict, most common first.
KEYS = tuple(
    """
    model state_dict model_state_dict module model_state net network weights params
    """.split()
)
_MAX_DEPTH = 40


class ModelTensors(msgspec.Struct):
    """The tensors of a model by name. ``rest``: entries of its state_dict that are not tensors."""

    tensors: dict[str, Tensor] = msgspec.field(default_factory=dict)
    ties: dict[str, str] = msgspec.field(default_factory=dict)
    frozen: set[str] = msgspec.field(default_factory=set)
    buffers: set[str] = msgspec.field(default_factory=set)
    rest: dict[str, Any] = msgspec.field(default_factory=dict)
    problems: list[FileProblem] = msgspec.field(default_factory=list)


class _StateEntry(msgspec.Struct, frozen=True):
    name: str
    value: Any
    buffer: bool = False
    parameter: bool = False


def find_model_key(value: Mapping[Any, Any]) -> str | None:
    """Return the key that holds the model.

    None: ``value`` is the state_dict itself, or holds none.
    """
    for key in KEYS:
        if key in value and holds_tensors(value[key]):
            return key
    if any(isinstance(item, TensorRef) for item in value.values()):
        return None
    counts = {key: _count_tensors(item) for key, item in value.items() if isinstance(key, str)}
    best = max(counts, key=lambda key: counts[key], default=None)
    return best if best is not None and counts[best] else None


def holds_tensors(value: Any) -> bool:
    """Return whether ``value`` is a state_dict or a module."""
    return _count_tensors(value, most=1) > 0


def collect_model(source: TorchSource, value: Any) -> ModelTensors:
    """Return the tensors of a state_dict or module; invalid ones become problems."""
    model = ModelTensors()
    first: dict[tuple[Any, ...], str] = {}
    for entry in _entries(value, "", 0):
        name, value = entry.name, entry.value
        if not isinstance(value, TensorRef):
            model.rest[name] = value
            continue
        location = (value.storage.key, value.dtype, value.offset, value.shape, value.strides)
        if 0 not in value.shape and first.setdefault(location, name) != name:
            model.ties[name] = first[location]
            continue
        try:
            model.tensors[name] = source.tensor(name, value)
        except CheckpointUnreadable as error:
            model.problems.append(
                FileProblem(kind="truncated", file=source.name, why=f"{name}: {error.why}")
            )
            continue
        if entry.buffer:
            model.buffers.add(name)
        elif entry.parameter and not value.requires_grad:
            model.frozen.add(name)
    return model


def _entries(value: Any, prefix: str, depth: int) -> Iterator[_StateEntry]:
    """Yield the entries of a state_dict or module in order; nested dicts are flattened."""
    if isinstance(value, OpaqueObject) and depth < _MAX_DEPTH:
        yield from _module_entries(value, prefix, depth)
        return
    for key, child in value.items() if isinstance(value, Mapping) else ():
        if isinstance(child, Mapping) and depth < _MAX_DEPTH and holds_tensors(child):
            yield from _entries(child, f"{prefix}{key}.", depth + 1)
        else:
            yield _StateEntry(f"{prefix}{key}", child)


def _module_entries(module: OpaqueObject, prefix: str, depth: int) -> Iterator[_StateEntry]:
    """Yield entries as ``Module.state_dict()`` does (torch/nn/modules/module.py).

    Parameters, buffers, children.
    """
    state = _module_state(module)
    for key, child in _items(state, "_parameters"):
        yield _StateEntry(f"{prefix}{key}", child, parameter=True)
    hidden = state.get("_non_persistent_buffers_set")
    for key, child in _items(state, "_buffers"):
        if key not in (hidden if isinstance(hidden, (set, frozenset)) else ()):
            yield _StateEntry(f"{prefix}{key}", child, buffer=True)
    for key, child in _items(state, "_modules"):
        if isinstance(child, OpaqueObject) and depth < _MAX_DEPTH:
            yield from _module_entries(child, f"{prefix}{key}.", depth + 1)


def _items(state: Mapping[str, Any], kind: str) -> list[tuple[str, Any]]:
    entries = state.get(kind)
    return (
        [(key, item) for key, item in entries.items() if item is not None]
        if isinstance(entries, Mapping)
        else []
    )


def _module_state(module: OpaqueObject) -> Mapping[str, Any]:
    state = vars(module)["state"]
    return state if isinstance(state, Mapping) else {}


def _count_tensors(value: Any, depth: int = 0, most: int = 1 << 30) -> int:
    """Count tensors in a state_dict or module, up to ``most``."""
    if isinstance(value, TensorRef):
        return int(depth > 0)
    if depth > _MAX_DEPTH or not isinstance(value, (Mapping, OpaqueObject)):
        return 0
    if isinstance(value, OpaqueObject):
        return sum(1 for _ in zip(range(most), _module_entries(value, "", depth), strict=False))
    count = 0
    for item in value.values():
        count += _count_tensors(item, depth + 1, most - count)
        if count >= most:
            break
    return count
