"""Judges how the pairs of GPUs are connected: missing NVLinks, and paths over the CPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from holdfast.causes.gpu.gpu_link_degraded import GPU_LINK_DEGRADED
from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.core.rank_sets import compress_ranks
from holdfast.host.gpus import DriverReport, GpuPair

#: From this share of pairs with NVLink on, a pair without is a fault and no construction: bridges
#: connect two of four GPUs.
_USUAL_SHARE = 0.5
#: Paths as in the legend of `nvidia-smi topo -m`, from the slowest.
_PATHS: Mapping[str, str] = {
    "SYS": "the link between CPU sockets (SYS)",
    "NODE": "the link between host bridges of one CPU (NODE)",
    "PHB": "the host bridge of a CPU (PHB)",
}


def judge_pairs(report: DriverReport, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    """Warn of NVLinks that other pairs have; note pairs whose traffic crosses the CPUs."""
    pairs = report.pairs if isinstance(report.pairs, tuple) else ()
    without = [pair for pair in pairs if pair.link != "NVLink"]
    if without and len(without) < (1 - _USUAL_SHARE) * len(pairs):
        yield _missing_nvlink(without, len(pairs), evidence)
        return
    for path, name in _PATHS.items():
        crossing = [pair for pair in pairs if pair.link == path]
        groups = _near_groups(pairs, crossing)
        # Of GPUs that are all as far from each other, no order is better.
        if crossing and 1 < len(groups) < len(set().union(*groups)):
            yield _over_cpu(crossing, pairs, groups, name, evidence)
            return


def _missing_nvlink(without: Sequence[GpuPair], count: int, evidence: tuple[Fact, ...]) -> Finding:
    ends = [{pair.first, pair.second} for pair in without]
    common = set.intersection(*ends)
    gpu = min(common) if len(common) == 1 else None
    subject = f"GPU {gpu} has" if gpu is not None else f"{_describe(without)} have"
    path = " and ".join(sorted({pair.link for pair in without}))
    return make_finding(
        GPU_LINK_DEGRADED,
        f"{subject} no NVLink in {len(without)} of {count} pairs ({path}), unlike the other pairs: "
        "rings over all GPUs are as slow as this path",
        level=Level.WARNING,
        subject=Subject(gpu=gpu, link=_describe(without)),
        evidence=evidence,
        confidence=0.8,
        remedies=(
            automatic(
                "Show the state of its links.",
                f"nvidia-smi nvlink -s -i {gpu if gpu is not None else without[0].first}",
            ),
            *GPU_LINK_DEGRADED.remedies,
        ),
    )


def _over_cpu(
    crossing: Sequence[GpuPair],
    pairs: Sequence[GpuPair],
    groups: Sequence[Sequence[int]],
    name: str,
    evidence: tuple[Fact, ...],
) -> Finding:
    order = ",".join(str(gpu) for group in groups for gpu in group)
    near = " and ".join(compress_ranks(group) for group in groups)
    return make_finding(
        GPU_LINK_DEGRADED,
        f"{len(crossing)} of {len(pairs)} pairs of GPUs communicate over {name}, first "
        f"{_describe(crossing[:1])}: tensor parallelism belongs within GPUs {near}",
        level=Level.NOTE,
        subject=Subject(link=_describe(crossing[:1])),
        evidence=evidence,
        confidence=0.6,
        remedies=(
            by_hand(
                "Number the ranks so that groups with the most traffic are near each other.",
                f"export CUDA_VISIBLE_DEVICES={order}",
            ),
        ),
    )


def _near_groups(pairs: Sequence[GpuPair], crossing: Sequence[GpuPair]) -> list[list[int]]:
    """Return the groups of GPUs that are connected without the slowest path."""
    near: dict[int, set[int]] = defaultdict(set)
    for pair in pairs:
        near[pair.first].add(pair.first)
        near[pair.second].add(pair.second)
        if pair not in crossing:
            near[pair.first].add(pair.second)
            near[pair.second].add(pair.first)
    groups: list[list[int]] = []
    for gpu in sorted(near):
        if not any(gpu in group for group in groups):
            groups.append(sorted(near[gpu]))
    return groups


def _describe(pairs: Sequence[GpuPair]) -> str:
    names = ", ".join(f"{pair.first}-{pair.second}" for pair in pairs[:4])
    return f"GPUs {names}" + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")
