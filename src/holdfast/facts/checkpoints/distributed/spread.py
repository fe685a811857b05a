"""Tensors of torch that are spread over ranks, as one rank pickled them: which part of the whole is its own.

The forms are those of torch/distributed/_shard/sharded_tensor/api.py (``ShardedTensor.__getstate__``) and of
torch/distributed/tensor (``DTensor``, ``DTensorSpec``, ``DeviceMesh``), torch 2.2 to 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.facts.checkpoints.files.torch_pickle import Dtype, Opaque, Refused, TensorAt

Shape = tuple[int, ...]
_SHARDED = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
_DTENSORS = ("torch.distributed.tensor.DTensor", "torch.distributed.tensor._api.DTensor",
             "torch.distributed._tensor.api.DTensor")  # fmt: skip


class Share(msgspec.Struct, frozen=True):
    """What one of ``ranks`` ranks has of a tensor: parts, each with the index of its first element in the whole."""

    dtype: str
    shape: Shape
    parts: tuple[tuple[Shape, TensorAt], ...]
    ranks: int


class _Device(Opaque):
    """``torch.distributed.remote_device._remote_device``: where a shard was; a class with a name like a function's."""

    path = "torch.distributed.remote_device._remote_device"


def _attribute(owner: Any, name: Any) -> Any:
    """``getattr``, by which Python pickles a class inside of a class: of ShardedTensor's own alone."""
    if not (isinstance(owner, type) and getattr(owner, "path", "") == _SHARDED and name == "ProcessGroupState"):
        raise Refused(("builtins.getattr",))
    return type("Opaque", (Opaque,), {"path": f"{_SHARDED}.{name}"})


#: What these tensors' pickles name besides ordinary classes.
CLASSES: Mapping[str, Callable[..., Any]] = {
    _Device.path: _Device,
    "__builtin__.getattr": _attribute,
    "builtins.getattr": _attribute,
}


def share_of(value: Opaque, rank: int) -> Share | None:
    """The share of ``rank``; None where it is no spread tensor. Raises ValueError: it is of a form not known here."""
    if value.path != "torch._tensor._rebuild_from_type_v2":
        return None
    try:
        _, kind, given, state = value.__dict__["args"]
        shape, dtype = tuple(given[2]), given[1]
        if kind.path == _SHARDED:
            return _sharded(state)
        if kind.path in _DTENSORS and isinstance(dtype, Dtype):
            return _dtensor(state, dtype.name, shape, rank)
    except (TypeError, KeyError, AttributeError, IndexError, StopIteration) as error:
        raise ValueError("a spread tensor in it is of a form that is not known here") from error
    return None


def _sharded(state: Any) -> Share:
    shards, about, group = state[:3]
    known = _fields(about)
    shape = tuple(known["size"])
    dtype = next(each.name for each in _fields(known["tensor_properties"]).values() if isinstance(each, Dtype))
    parts = []
    for shard in shards:
        fields = _fields(shard)
        start = tuple(_fields(fields["metadata"])["shard_offsets"])
        parts.append(_part(start, fields["tensor"], shape))
    return Share(dtype, shape, tuple(parts), int(_fields(group)["local_world_size"]))


def _dtensor(state: Any, dtype: str, shape: Shape, rank: int) -> Share:
    fields = state if isinstance(state, Mapping) else state[1]
    local, spec = fields["_local_tensor"], _fields(fields["_spec"])
    mesh = _fields(spec["mesh"])
    sizes = _mesh_shape(mesh)
    ranks = [int(each) for each in mesh.get("_flatten_rank_map") or range(math.prod(sizes))]
    if rank not in ranks:
        raise ValueError(f"rank {rank} is not in its mesh")
    place, start, extent = ranks.index(rank), [0] * len(shape), list(shape)
    for axis, placement in enumerate(spec["placements"]):
        at = place // math.prod(sizes[axis + 1 :]) % sizes[axis]
        name = placement.path.rpartition(".")[2]
        if name == "Replicate":
            continue
        if name != "Shard":
            raise ValueError(f"it is placed by {name}, which is not put together here")
        dim = int(_fields(placement)["dim"])
        rows = -(-extent[dim] // sizes[axis])  # as torch.chunk divides
        first = min(rows * at, extent[dim])
        start[dim] += first
        extent[dim] = min(rows, extent[dim] - first)
    if local.shape != tuple(extent):
        raise ValueError(f"rank {rank} has {list(local.shape)} of it, and by its mesh {extent}")
    parts = (_part(tuple(start), local, shape),) if 0 not in extent else ()
    return Share(dtype, shape, parts, math.prod(sizes))


def _mesh_shape(mesh: Mapping[str, Any]) -> Shape:
    """As a tensor of ranks (to torch 2.8), or as a layout."""
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    if isinstance(tensor, TensorAt):
        return tensor.shape
    layout = _fields(mesh["_layout"])
    if "axes" in layout:
        return tuple(math.prod(_fields(axis)["shape"]) for axis in layout["axes"])
    sizes = layout["shape"]
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (int(sizes),)


def _part(start: Shape, tensor: Any, shape: Shape) -> tuple[Shape, TensorAt]:
    """Raises ValueError: it reaches beyond the whole."""
    inside = isinstance(tensor, TensorAt) and len(start) == len(shape) == len(tensor.shape)
    if not inside or any(at < 0 or at + n > size for at, n, size in zip(start, tensor.shape, shape, strict=True)):
        raise ValueError("a shard of it reaches beyond it")
    return start, tensor


def _fields(value: Any) -> Mapping[Any, Any]:
    """The attributes of an object of the pickle: of a dict, of slots, by place, or what its class was called with."""
    state = value.__dict__["state"]
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], Mapping):  # (dict or None, slots)
        return {**(state[0] or {}), **state[1]}
    if isinstance(state, Mapping):
        return state
    given = state if isinstance(state, tuple) else value.__dict__["args"]
    return dict(enumerate(given))
