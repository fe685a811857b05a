"""CONF005 world-size-wrong."""

from __future__ import annotations

from holdfast.core.findings import Cause, Remedy
from holdfast.core.treatments import Treatment

WORLD_SIZE_WRONG = Cause(
    code="CONF005",
    name="world-size-wrong",
    summary="The script passes a larger world_size to init_process_group than the job has ranks.",
    what_happens="The backend exchanges the addresses of all ranks through the job's store. All "
    "existing ranks wait there for the addresses of ranks that no launcher starts, until the "
    "timeout of the group (30 minutes on gloo, 10 on NCCL).",
    shows_before="A `world_size=` argument, or an assignment to WORLD_SIZE, that counts one GPU or "
    "one node too many, or a number of nodes written in the script.",
    shows_during="All ranks are in init_process_group, and no collective was made. `holdfast run` "
    "compares the world_size with the number of ranks it started.",
    shows_after="`wait timeout after ...ms, keys:` with the number of a rank that does not exist, "
    "or `connectFullMesh failed`, on all ranks at the same line.",
    known_misses="A smaller world_size is not reported: torch raises an error on the ranks beyond "
    "it, unless the script forms several jobs on purpose. Only `holdfast run` knows the number of "
    "ranks that were started.",
    treatment=Treatment.CODE,
    remedies=(
        Remedy(
            text="Call `dist.init_process_group(backend)` without rank and world_size: the "
            "launcher sets both in the environment."
        ),
        Remedy(
            text="If the number is right, start as many ranks: compare it with --nnodes and "
            "--nproc-per-node."
        ),
    ),
    sources=("torch 2.13.0 with gloo, measured: 4 ranks with world_size=5",),
)
