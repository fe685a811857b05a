"""What is wrong with a planned run, before it is started. Pure: setups and what they need, to findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.findings import Fact, Finding, Level, Remedy, finding
from holdfast.plan.hardware import Cluster
from holdfast.plan.memory import Answer, Footprint
from holdfast.plan.setup import Setup
from holdfast.rules.causes import by_name

GIB = 1 << 30


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged: a model's name, its setup on GPUs (``clusters``, one of each kind), and what it needs.

    ``precision`` by name, as it was ``asked`` for or chosen; ``remedies`` make it fit.
    """

    name: str
    setup: Setup
    clusters: Sequence[Cluster]
    worst: Cluster
    footprint: Footprint
    precision: str
    asked: bool = False
    remedies: tuple[Remedy, ...] = ()


def judge(plan: Plan) -> Iterator[Finding]:
    """An error where it does not fit; warnings where it is tight, or where something takes far longer than it need."""
    yield from _memory(plan)
    yield from _precision(plan)
    yield from _tensor(plan)


def _memory(plan: Plan) -> Iterator[Finding]:
    found, worst = plan.footprint, plan.footprint.worst
    if found.answer is Answer.FITS or found.margin is None or found.memory is None:
        return
    stage = f" of pipeline stage {worst.stage}" if plan.setup.pipeline > 1 else ""
    size, room = worst.total / GIB, found.memory / GIB
    of = f"{size:.1f} GiB on each GPU{stage}, where {plan.worst.gpu.name} has {room:.1f}"
    if found.answer is Answer.DOES_NOT_FIT:
        said, level, sure = f"{plan.name} does not fit: it needs {of}", Level.ERROR, 0.95
    elif found.margin < 0:
        said = f"{plan.name} may not fit: with what the allocator keeps it needs {of}"
        level, sure = Level.WARNING, 0.6
    else:
        said = f"{plan.name} may not fit: it needs {of}, and the estimate may be {found.error:.0%} off"
        level, sure = Level.WARNING, 0.5
    parts = ", ".join(f"{name} {nbytes / GIB:.1f}" for name, nbytes in list(worst.rows())[:6])
    evidence = Fact(text=f"GiB at the peak, which is {_moment(worst.moment)}: {parts}", origin="holdfast.plan.memory")
    yield finding(by_name("gpu-oom-all-ranks"), said, level=level, evidence=(evidence,), remedies=plan.remedies,
                  confidence=sure)  # fmt: skip


def _moment(moment: str) -> str:
    return moment if moment.startswith(("the ", "at ")) else f"the {moment}"


def _precision(plan: Plan) -> Iterator[Finding]:
    """What is asked for and a GPU cannot do is computed all the same, by instructions that take many times as long."""
    wanted = {"bf16": "bf16", "bf16-pure": "bf16", "fp8": "fp8"}.get(plan.precision, "")
    lacking = [each.gpu for each in plan.clusters if wanted and not getattr(each.gpu, wanted)]
    if not lacking:
        return
    names = " and ".join(dict.fromkeys(gpu.name for gpu in lacking))
    have = " and ".join(dict.fromkeys(".".join(map(str, gpu.capability)) for gpu in lacking))
    said = f"{names} has no units for {wanted}: a step takes far longer than is planned here"
    fact = Fact(text=f"compute capability {have}", origin=lacking[0].source)
    yield finding(by_name("precision-without-hardware"), said, level=Level.WARNING, evidence=(fact,))


def _tensor(plan: Plan) -> Iterator[Finding]:
    node = min(each.per_node for each in plan.clusters)
    if plan.setup.tensor > node:
        yield finding(
            by_name("tensor-parallel-across-nodes"),
            f"tensor parallelism of {plan.setup.tensor} reaches beyond a node of {node} GPUs", level=Level.WARNING,
            evidence=(Fact(text=_links(plan.clusters[0]), origin=f"tables, {plan.clusters[0].gpu.source}"),),
        )  # fmt: skip


def _links(cluster: Cluster) -> str:
    inside, outside = cluster.links.inside / 1e9, cluster.links.outside / 1e9
    return f"a GPU sends {inside:.3g} GB/s within a node and {outside:.3g} GB/s out of it"
