"""The plan as JSON: the envelope of all commands, and the plan's own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.plan.hardware import Cluster
from holdfast.plan.request.command import plan_command
from holdfast.plan.request.model import model_json
from holdfast.plan.request.plan_request import PlannedRun
from holdfast.plan.request.planning import PlanResult
from holdfast.report.json import envelope

if TYPE_CHECKING:
    from holdfast.plan.request.config_files import WrittenFiles


def plan_json(
    result: PlanResult, files: WrittenFiles | None = None, *, with_groups: bool = False
) -> dict[str, Any]:
    """Return the whole plan; bytes, seconds and tokens are plain numbers."""
    request = result.request
    return envelope(
        "plan",
        result.findings,
        result.verdict,
        answer=result.run.memory.fit,
        model=model_json(request.model),
        clusters=[_cluster_json(item) for item in request.clusters],
        precision=request.resolved_precision,
        links=request.links_origin,
        assumed=result.assumed,
        runs=[_run_json(item) for item in result.runs],
        fixes=[
            {
                "what": item.change,
                "cost": item.cost,
                "saved": item.saved,
                "command": plan_command(item.request, item.run.setup),
                **_run_json(item.run),
            }
            for item in result.fit_options
        ],
        groups=_groups_json(result) if with_groups else None,
        simulated=result.simulation_notes,
        layouts=_layouts_json(result),
        written=files,
        allotment=result.allocation,
        curve=result.scaling,
        shortfall=result.shortfall,
    )


def _layouts_json(result: PlanResult) -> dict[str, Any] | None:
    """Return the best layouts and the rejected ones; None if no layout was searched for."""
    choice = result.choice
    if choice is None:
        return None
    best = [
        {
            "setup": layout.setup,
            "tokens_per_s": layout.step.tokens_per_s,
            "margin": layout.memory.margin,
            "behind": layout.behind,
            "reasons": layout.reasons,
            "command": plan_command(result.request, layout.setup),
        }
        for layout in choice.best
    ]
    return {
        "best": best,
        "others": [
            {**msgspec.to_builtins(layout), "text": str(layout)} for layout in choice.rejected
        ],
        "simplest": choice.simplest and choice.simplest.setup,
        "tried": choice.tried,
        "fitting": choice.fitting,
        "tight": choice.tight,
    }


def _groups_json(result: PlanResult) -> dict[str, Any] | None:
    """Return the mesh axes and the ranks of every group by kind; None if shares are unequal."""
    if len(result.runs) > 1:
        return None
    from holdfast.plan.request import process_groups  # noqa: PLC0415 - imports numpy

    groups = process_groups.checked_process_groups(result.run)
    axes = dict(zip(groups.mesh.names, groups.mesh.shape, strict=True))
    return {
        "mesh": axes,
        "kinds": groups.as_lists(),
        "sentences": list(
            process_groups.describe_process_groups(groups, result.run.cluster.per_node)
        ),
    }


def _cluster_json(cluster: Cluster) -> dict[str, Any]:
    return {
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "per_node": cluster.per_node,
        "nodes": cluster.nodes,
        "memory": int(cluster.gpu.memory_gib * 2**30),
    }


def _run_json(run: PlannedRun) -> dict[str, Any]:
    memory = run.memory
    stages = [{**msgspec.to_builtins(rank), "total": rank.total} for rank in memory.stages]
    return {
        "gpu": run.cluster.gpu.name,
        "gpus": run.cluster.gpus,
        "setup": run.setup,
        "memory": {
            "answer": memory.fit,
            "margin": memory.margin,
            "error": memory.error,
            "of": memory.gpu_memory,
            "total": memory.worst.total,
            "host": memory.host,
            "host_of": memory.host_memory,
            "stages": stages,
        },
        "time": run.step,
        "no_time": run.no_time_reason,
    }
