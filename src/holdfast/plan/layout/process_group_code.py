"""Render process groups as a torch program that creates them from a DeviceMesh."""

from __future__ import annotations

from holdfast.plan.layout.process_groups import ProcessGroups

_HEADER = '''"""Process groups of a job of {world} ranks: {axes}, the innermost last.

Call make_groups() after torch.distributed.init_process_group.
"""

import os

import torch
import torch.distributed as dist
'''
_WORLD_CHECK = """\
    if (ranks := dist.get_world_size()) != {world}:
        raise SystemExit(f"{{ranks}} ranks were started, but the plan is for {world}")\
"""
_MAIN = """

if __name__ == "__main__":
    on_gpus = torch.cuda.is_available()
    if on_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpus else "gloo")
    for kind, group in make_groups("cuda" if on_gpus else "cpu").items():
        print(f"rank {dist.get_rank()}: {kind} {dist.get_process_group_ranks(group)}")
    dist.barrier()  # no rank exits while another still creates its groups
    dist.destroy_process_group()
"""


def render_mesh_code(groups: ProcessGroups, device: str = "cuda") -> str:
    """Render a program that creates the groups from a DeviceMesh.

    Kinds of several axes are created from lists that are equal on every rank.
    """
    axes = [
        kind for kind in groups.kinds if groups.kinds[kind] == (kind,) and kind in groups.mesh.names
    ]
    imports = "init_device_mesh" if groups.expert_mesh is None else "DeviceMesh, init_device_mesh"
    lines = [
        _render_header(groups) + f"from torch.distributed.device_mesh import {imports}",
        "",
        "",
        f'def make_groups(device: str = "{device}") -> dict[str, dist.ProcessGroup]:',
        '    """Create all groups in the same order on all ranks; return this rank\'s groups."""',
        _WORLD_CHECK.format(world=groups.world_size),
        (
            f"    mesh = init_device_mesh(device, {groups.mesh.shape}, "
            f"mesh_dim_names={_render_names(groups.mesh.names)})"
        ),
        f"    groups = {{name: mesh.get_group(name) for name in {_render_names(axes)}}}",
    ]
    combined = [kind for kind in groups.kinds if len(groups.kinds[kind]) > 1]
    if combined:
        lines.append(f"    ranks = torch.arange({groups.world_size}).view{groups.mesh.shape}")
        lines += [
            f'    groups["{kind}"], _ = '
            f"dist.new_subgroups_by_enumeration({_render_lists(groups, kind, 'ranks')})"
            for kind in combined
        ]
    if groups.expert_mesh is not None:
        shape, names = groups.expert_mesh.shape, groups.expert_mesh.names
        lines.append(f"    ranks = torch.arange({groups.world_size}).view{shape}")
        lines.append(
            f"    experts = DeviceMesh(device, ranks, mesh_dim_names={_render_names(names)})"
        )
        expert_kinds = [kind for kind in groups.kinds if kind in ("ep", "edp")]
        lines += [f'    groups["{kind}"] = experts.get_group("{kind}")' for kind in expert_kinds]
    return "\n".join([*lines, "    return groups", _MAIN])


def _render_header(groups: ProcessGroups) -> str:
    axes = ", ".join(
        f"{name} {size}" for name, size in zip(groups.mesh.names, groups.mesh.shape, strict=True)
    )
    return _HEADER.format(world=groups.world_size, axes=axes)


def _render_lists(groups: ProcessGroups, kind: str, name: str) -> str:
    """Render the groups of a kind, from the tensor ``name`` of all ranks in the mesh's shape."""
    mesh = groups.mesh_of(kind)
    positions = [mesh.names.index(axis) for axis in groups.kinds[kind]]
    ends = list(range(-len(positions), 0))
    return (
        f"{name}.movedim({positions}, {ends}).reshape(-1, {groups.ranks(kind).shape[1]}).tolist()"
    )


def _render_names(names: list[str] | tuple[str, ...]) -> str:
    """Render a Python tuple."""
    quoted = [f'"{name}"' for name in names]
    return f"({', '.join(quoted)}{',' if len(quoted) == 1 else ''})"
