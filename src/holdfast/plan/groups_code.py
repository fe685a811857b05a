"""Process groups as a program for torch: by a DeviceMesh, or by ``new_group`` of all ranks in one order."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.plan.groups import Groups

_START = '''"""Process groups of a job of {world} ranks: {axes}, the innermost last.

Call make_groups() after torch.distributed.init_process_group.
"""

import torch
import torch.distributed as dist
'''
_END = """

if __name__ == "__main__":
    dist.init_process_group()
    for kind, group in make_groups().items():
        print(f"rank {dist.get_rank()}: {kind} {dist.get_process_group_ranks(group)}")
    dist.destroy_process_group()
"""


def mesh_code(found: Groups, device: str = "cuda") -> str:
    """A program that makes them from a DeviceMesh; kinds of several axes by lists that are the same on every rank."""
    axes = [kind for kind in found.kinds if found.kinds[kind] == (kind,) and kind in found.mesh.names]
    imports = "init_device_mesh" if found.experts is None else "DeviceMesh, init_device_mesh"
    lines = [
        _start(found) + f"from torch.distributed.device_mesh import {imports}", "", "",
        f'def make_groups(device: str = "{device}") -> dict[str, dist.ProcessGroup]:',
        '    """This rank\'s group of each kind; all ranks make all of them, in the same order."""',
        f"    mesh = init_device_mesh(device, {found.mesh.shape}, mesh_dim_names={_names(found.mesh.names)})",
        f"    groups = {{name: mesh.get_group(name) for name in {_names(axes)}}}",
    ]  # fmt: skip
    several = [kind for kind in found.kinds if len(found.kinds[kind]) > 1]
    if several:
        lines.append(f"    ranks = torch.arange({found.world_size}).view{found.mesh.shape}")
        lines += [f'    groups["{kind}"], _ = dist.new_subgroups_by_enumeration({_lists(found, kind, "ranks")})'
                  for kind in several]  # fmt: skip
    if found.experts is not None:
        shape, names = found.experts.shape, found.experts.names
        lines.append(f"    ranks = torch.arange({found.world_size}).view{shape}")
        lines.append(f"    experts = DeviceMesh(device, ranks, mesh_dim_names={_names(names)})")
        own = [kind for kind in found.kinds if kind in ("ep", "edp")]
        lines += [f'    groups["{kind}"] = experts.get_group("{kind}")' for kind in own]
    return "\n".join([*lines, "    return groups", _END])


def new_group_code(found: Groups) -> str:
    """A program whose ``make_groups`` calls ``new_group`` for every group on every rank, in one order."""
    lines = [
        _start(found), "",
        "def make_groups() -> dict[str, dist.ProcessGroup]:",
        '    """This rank\'s group of each kind; all ranks make all of them, in the same order."""',
        "    rank, groups = dist.get_rank(), {}",
        "    for kind, lists in all_groups().items():",
        "        for ranks in lists:",
        "            group = dist.new_group(ranks)  # also those that this rank is not in: torch waits for all",
        "            if rank in ranks:",
        "                groups[kind] = group",
        "    return groups", "", "",
        "def all_groups() -> dict[str, list[list[int]]]:",
        '    """The same on every rank."""',
        f"    mesh = torch.arange({found.world_size}).view{found.mesh.shape}",
    ]  # fmt: skip
    if found.experts is not None:
        lines.append(f"    experts = torch.arange({found.world_size}).view{found.experts.shape}")
    return "\n".join([*lines, "    return {", *_kinds(found), "    }", _END])


def _start(found: Groups) -> str:
    axes = ", ".join(f"{name} {size}" for name, size in zip(found.mesh.names, found.mesh.shape, strict=True))
    return _START.format(world=found.world_size, axes=axes)


def _kinds(found: Groups) -> Iterator[str]:
    for kind in found.kinds:
        name = "mesh" if found.home(kind) is found.mesh else "experts"
        yield f'        "{kind}": {_lists(found, kind, name)},'


def _lists(found: Groups, kind: str, name: str) -> str:
    """The groups of a kind, from the tensor ``name`` of all ranks in the mesh's shape."""
    home = found.home(kind)
    places = [home.names.index(axis) for axis in found.kinds[kind]]
    ends = list(range(-len(places), 0))
    return f"{name}.movedim({places}, {ends}).reshape(-1, {found.ranks(kind).shape[1]}).tolist()"


def _names(names: list[str] | tuple[str, ...]) -> str:
    """As a tuple in Python."""
    quoted = [f'"{name}"' for name in names]
    return f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"
