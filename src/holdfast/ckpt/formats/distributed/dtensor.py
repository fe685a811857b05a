"""Parses pickled sharded tensors of one rank: which part of the full tensor it holds.

Formats: torch/distributed/_shard/sharded_tensor/api.py (``ShardedTensor.__getstate__``) and
torch/distributed/tensor (``DTensor``, ``DTensorSpec``, ``DeviceMesh``), torch 2.2 to 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.ckpt.files.torch_pickle import GlobalRefused, OpaqueObject, PickledDtype, TensorRef

Shape = tuple[int, ...]
_SHARDED = "torch.distributed._shard.sharded_tensor.api.ShardedTensor"
_DTENSORS = (
    "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor._api.DTensor",
    "torch.distributed._tensor.api.DTensor",
)


class LocalTensorShards(msgspec.Struct, frozen=True):
    """One rank's shards of a tensor, each with its start index; ``ranks`` share the tensor."""

    dtype: str
    shape: Shape
    parts: tuple[tuple[Shape, TensorRef], ...]
    ranks: int


class _Device(OpaqueObject):
    """Stands in for ``_remote_device``, a class named like a function: where a shard was."""

    path = "torch.distributed.remote_device._remote_device"


def _attribute(owner: Any, name: Any) -> Any:
    """Stand in for ``getattr`` on nested classes; allowed for ShardedTensor only."""
    if not (
        isinstance(owner, type)
        and getattr(owner, "path", "") == _SHARDED
        and name == "ProcessGroupState"
    ):
        raise GlobalRefused(("builtins.getattr",))
    return type("Opaque", (OpaqueObject,), {"path": f"{_SHARDED}.{name}"})


#: Names in pickles of these tensors besides ordinary classes.
CLASSES: Mapping[str, Callable[..., Any]] = {
    _Device.path: _Device,
    "__builtin__.getattr": _attribute,
    "builtins.getattr": _attribute,
}


def local_shards_of(value: OpaqueObject, rank: int) -> LocalTensorShards | None:
    """Return the shards of ``rank``; None if it is not a sharded tensor.

    Raises:
        ValueError: the form is not supported.
    """
    if value.path != "torch._tensor._rebuild_from_type_v2":
        return None
    try:
        _, kind, arguments, state = value.__dict__["args"]
        shape, dtype = tuple(arguments[2]), arguments[1]
        if kind.path == _SHARDED:
            return _from_sharded_tensor(state)
        if kind.path in _DTENSORS and isinstance(dtype, PickledDtype):
            return _from_dtensor(state, dtype.name, shape, rank)
    except (TypeError, KeyError, AttributeError, IndexError, StopIteration) as error:
        raise ValueError("it contains a sharded tensor of an unsupported form") from error
    return None


def _from_sharded_tensor(state: Any) -> LocalTensorShards:
    shards, about, group = state[:3]
    known = _fields(about)
    shape = tuple(known["size"])
    dtype = next(
        value.name
        for value in _fields(known["tensor_properties"]).values()
        if isinstance(value, PickledDtype)
    )
    parts = []
    for shard in shards:
        fields = _fields(shard)
        start = tuple(_fields(fields["metadata"])["shard_offsets"])
        parts.append(_check_shard(start, fields["tensor"], shape))
    return LocalTensorShards(dtype, shape, tuple(parts), int(_fields(group)["local_world_size"]))


def _from_dtensor(state: Any, dtype: str, shape: Shape, rank: int) -> LocalTensorShards:
    fields = state if isinstance(state, Mapping) else state[1]
    local, spec = fields["_local_tensor"], _fields(fields["_spec"])
    mesh = _fields(spec["mesh"])
    sizes = _mesh_shape(mesh)
    ranks = [int(item) for item in mesh.get("_flatten_rank_map") or range(math.prod(sizes))]
    if rank not in ranks:
        raise ValueError(f"rank {rank} is not in its device mesh")
    position, start, extent = ranks.index(rank), [0] * len(shape), list(shape)
    for axis, placement in enumerate(spec["placements"]):
        at = position // math.prod(sizes[axis + 1 :]) % sizes[axis]
        name = placement.path.rpartition(".")[2]
        if name == "Replicate":
            continue
        if name != "Shard":
            raise ValueError(f"placement {name} is not supported")
        dim = int(_fields(placement)["dim"])
        rows = -(-extent[dim] // sizes[axis])  # as in torch.chunk
        first = min(rows * at, extent[dim])
        start[dim] += first
        extent[dim] = min(rows, extent[dim] - first)
    if local.shape != tuple(extent):
        raise ValueError(
            f"rank {rank} holds shape {list(local.shape)}, but its mesh implies {extent}"
        )
    parts = (_check_shard(tuple(start), local, shape),) if 0 not in extent else ()
    return LocalTensorShards(dtype, shape, parts, math.prod(sizes))


def _mesh_shape(mesh: Mapping[str, Any]) -> Shape:
    """Return the mesh shape, stored as a tensor of ranks (until torch 2.8) or as a layout."""
    tensor = mesh.get("mesh", mesh.get("_mesh"))
    if isinstance(tensor, TensorRef):
        return tensor.shape
    layout = _fields(mesh["_layout"])
    if "axes" in layout:
        return tuple(math.prod(_fields(axis)["shape"]) for axis in layout["axes"])
    sizes = layout["shape"]
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (int(sizes),)


def _check_shard(start: Shape, tensor: Any, shape: Shape) -> tuple[Shape, TensorRef]:
    """Return the shard. Raises ValueError: it extends beyond the full tensor."""
    inside = isinstance(tensor, TensorRef) and len(start) == len(shape) == len(tensor.shape)
    if not inside or any(
        at < 0 or at + n > size for at, n, size in zip(start, tensor.shape, shape, strict=True)
    ):
        raise ValueError("a shard extends beyond the tensor")
    return start, tensor


def _fields(value: Any) -> Mapping[Any, Any]:
    """Return an object's attributes: from its dict, slots, position, or constructor arguments."""
    state = value.__dict__["state"]
    if (
        isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], Mapping)
    ):  # (dict or None, slots)
        return {**(state[0] or {}), **state[1]}
    if isinstance(state, Mapping):
        return state
    fields = state if isinstance(state, tuple) else value.__dict__["args"]
    return dict(enumerate(fields))
