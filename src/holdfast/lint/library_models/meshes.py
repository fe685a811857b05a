"""Device meshes: their dimensions, groups, sizes and coordinates.

Source: torch 2.13 torch/distributed/device_mesh.py.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import TaintKind, Value
from holdfast.lint.abstract_state.abstract_objects import (
    LAUNCHER_RANK,
    WORLD_SIZE,
    DeviceMesh,
    GroupNumber,
    ProcessGroup,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.patterns.scopes import walk
from holdfast.lint.sources.modules import last_name


def new_mesh(state: InterpreterState, call: LibraryCall) -> DeviceMesh:
    """Return the mesh that ``init_device_mesh`` creates of a shape, or ``DeviceMesh`` of ranks."""
    if call.name.endswith("DeviceMesh"):
        return _mesh_of_ranks(state, call)
    shape = call.arguments.get(1, "mesh_shape")
    named = call.arguments.get(2, "mesh_dim_names")
    names: Sequence[object] = [item.const for item in named.items or ()] if named else ()
    if not names and shape is not None and named is None:
        names = [str(at) for at in range(len(shape.items or ()))]
    known = tuple(name for name in names if isinstance(name, str))
    origin = f"{call.location.file}:{call.location.line}"
    return DeviceMesh(origin, known if len(known) == len(names) else ())


def _mesh_of_ranks(state: InterpreterState, call: LibraryCall) -> DeviceMesh:
    """Return the mesh of ``DeviceMesh(device_type, ranks, mesh_dim_names=...)``.

    It contains all ranks if its layout is made of ``torch.arange(world_size)``.
    """
    named, layout = call.arguments.named.get("mesh_dim_names"), call.arguments.node(1, "mesh")
    names = [item.const for item in named.items or ()] if named is not None else []
    known = tuple(name for name in names if isinstance(name, str))
    counts = [
        each.args[0]
        for each in (walk(layout) if layout is not None else ())
        if isinstance(each, ast.Call) and last_name(each.func) in ("arange", "range")
        if len(each.args) == 1
    ]
    whole = any(WORLD_SIZE in state.evaluate(call.frame, count).objects for count in counts)
    origin = f"{call.location.file}:{call.location.line}"
    names_known = len(known) == len(names)
    return DeviceMesh(origin, known if names_known else (), whole, len(known) != 1)


def mesh_part(mesh: DeviceMesh, names: Sequence[str]) -> DeviceMesh:
    """Return ``mesh["dp"]`` or ``mesh["dp", "cp"]``."""
    part = tuple(names)
    return replace(mesh, names=part, whole=mesh.whole and set(part) == set(mesh.names))


def mesh_group(mesh: DeviceMesh, dimension: object = None) -> ProcessGroup | None:
    """Return the group along a dimension; None if it is not known which one that is."""
    if isinstance(dimension, int) and -len(mesh.names) <= dimension < len(mesh.names):
        dimension = mesh.names[dimension]
    if dimension is None and len(mesh.names) == 1:
        (dimension,) = mesh.names
    if not isinstance(dimension, str):
        return None
    if mesh.names and dimension not in mesh.names:
        return ProcessGroup(world=False)  # a flattened dimension
    world = mesh.whole and len(mesh.names) == 1
    return ProcessGroup(
        world=world, name=f"{dimension} of {mesh.origin}", split=not world and mesh.split
    )


def mesh_method(state: InterpreterState, call: LibraryCall, mesh: DeviceMesh) -> Value | None:
    """Return the result of a method of a mesh; None for others."""
    passed = call.arguments.get(0, "mesh_dim")
    dimension = passed.const if passed is not None else None
    group = mesh_group(mesh, dimension)
    text = state.unparse(call.node)
    match call.name:
        case "get_group":
            return Value(objects=(group,)) if group is not None else Value(known=False)
        case "size":
            of_all = passed is None and mesh.whole and len(mesh.names) > 1
            size = GroupNumber("size", group, text) if group is not None else None
            return Value(
                objects=(WORLD_SIZE,) if of_all else () if size is None else (size,), known=of_all
            )
        case "get_local_rank":
            rank = state.taint_source(call.frame, TaintKind.RANK, call.node)
            number = GroupNumber("position", group, text) if group is not None else None
            return Value(rank, objects=() if number is None else (number,))
        case "get_coordinate":
            rank = state.taint_source(call.frame, TaintKind.RANK, call.node)
            groups = [mesh_group(mesh, name) for name in mesh.names]
            items = tuple(
                Value(rank, objects=(GroupNumber("position", group, text),))
                for group in groups
                if group is not None
            )
            return Value(rank, items=items or None)
        case "get_rank":
            rank = state.taint_source(call.frame, TaintKind.RANK, call.node)
            return Value(rank, objects=(LAUNCHER_RANK,))
        case _:
            return None
