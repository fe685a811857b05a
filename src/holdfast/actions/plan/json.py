"""A plan for scripts: the envelope that all commands share, and the plan's own keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.actions.plan.command import command
from holdfast.actions.plan.model import describe
from holdfast.actions.plan.planning import Planned
from holdfast.actions.plan.wish import Run
from holdfast.plan.hardware import Cluster
from holdfast.report.json import envelope

if TYPE_CHECKING:
    from holdfast.actions.plan.files import Files


def document(planned: Planned, files: Files | None = None, *, grouped: bool = False) -> dict[str, Any]:
    """All of it; bytes, seconds and tokens are plain numbers."""
    wish = planned.wish
    return envelope(
        "plan", planned.findings, planned.verdict, answer=planned.run.footprint.answer, model=describe(wish.model),
        clusters=[_cluster(each) for each in wish.parts], precision=wish.half, links=wish.links,
        assumed=planned.assumed,
        runs=[_run(each) for each in planned.runs],
        fixes=[
            {"what": each.what, "cost": each.cost, "saved": each.saved, "command": command(each.wish, each.run.setup),
             **_run(each.run)}
            for each in planned.fixes
        ],
        groups=_groups(planned) if grouped else None, simulated=planned.seen,
        layouts=_layouts(planned), written=files, allotment=planned.allotment,
        curve=planned.curve, shortfall=planned.shortfall,
    )  # fmt: skip


def _layouts(planned: Planned) -> dict[str, Any] | None:
    """The best ones and why the others lost; None where none was searched for."""
    choice = planned.choice
    if choice is None:
        return None
    best = [
        {"setup": each.setup, "tokens_per_s": each.step.tokens_per_s, "margin": each.needs.margin,
         "behind": each.behind, "reasons": each.reasons, "command": command(planned.wish, each.setup)}
        for each in choice.best
    ]  # fmt: skip
    return {"best": best, "others": [{**msgspec.to_builtins(each), "text": str(each)} for each in choice.others],
            "simplest": choice.simplest and choice.simplest.setup,
            "tried": choice.tried, "fitting": choice.fitting, "tight": choice.tight}  # fmt: skip


def _groups(planned: Planned) -> dict[str, Any] | None:
    """Axes of the mesh, and the ranks of every group by kind; None where shares are unequal."""
    if len(planned.runs) > 1:
        return None
    from holdfast.actions.plan import groups as plan_groups  # noqa: PLC0415 - numpy is for those who ask for groups

    found = plan_groups.made(planned.run)
    axes = dict(zip(found.mesh.names, found.mesh.shape, strict=True))
    return {
        "mesh": axes,
        "kinds": found.lists(),
        "sentences": list(plan_groups.lines(found, planned.run.cluster.per_node)),
    }


def _cluster(each: Cluster) -> dict[str, Any]:
    return {"gpu": each.gpu.name, "gpus": each.gpus, "per_node": each.per_node, "nodes": each.nodes,
            "memory": int(each.gpu.memory_gib * 2**30)}  # fmt: skip


def _run(run: Run) -> dict[str, Any]:
    found = run.footprint
    stages = [{**msgspec.to_builtins(rank), "total": rank.total} for rank in found.stages]
    return {
        "gpu": run.cluster.gpu.name, "gpus": run.cluster.gpus, "setup": run.setup,
        "memory": {"answer": found.answer, "margin": found.margin, "error": found.error, "of": found.memory,
                   "total": found.worst.total, "stages": stages},
        "time": run.step, "no_time": run.why,
    }  # fmt: skip
