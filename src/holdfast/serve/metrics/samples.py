"""The metrics of a run, from its live state and its past. Pure: no clock, no files.

The number of series does not grow with the job: one per rank, GPU or host up to a limit, above it
only the most conspicuous ones, and aggregates always. Names, labels and units are stable:
docs/metrics.md lists them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, TypeVar

from holdfast.core.live_state import NONE, LiveState, NodeReading
from holdfast.serve.live.reader import LiveReading
from holdfast.serve.live.runs import RunHead

#: Up to this many ranks, GPUs or hosts have a series each; of more, the most conspicuous have.
EACH, OUTLIERS = 64, 16
MAX_LATENCIES = 16
_MIB = 1 << 20

_Key = TypeVar("_Key", bound=Hashable)


class MetricSpec(NamedTuple):
    """A metric: help text, labels besides ``run``, and whether it only grows."""

    help: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False


class MetricSample(NamedTuple):
    """A value of a metric with its label values, ``run`` first."""

    name: str
    labels: tuple[str, ...]
    value: float


#: Name (a counter's without ``_total``) -> metric.
METRICS: dict[str, MetricSpec] = {
    "holdfast_run_live": MetricSpec("1 if the run's leader writes its state, else 0."),
    "holdfast_starts": MetricSpec("Starts of the workers.", is_counter=True),
    "holdfast_failures": MetricSpec("Failures, with or without a restart.", is_counter=True),
    "holdfast_run_status": MetricSpec("Exit status of a run that ended."),
    "holdfast_live_age_seconds": MetricSpec("Age of the live state."),
    "holdfast_live_problems": MetricSpec("Problems of reading it: versions, two leaders."),
    "holdfast_generation": MetricSpec("Number of the current start, from 0."),
    "holdfast_world_size": MetricSpec("Ranks of the job."),
    "holdfast_nodes": MetricSpec("Nodes of the job."),
    "holdfast_ranks": MetricSpec("Ranks by process state.", ("state",)),
    "holdfast_waiting_ranks": MetricSpec("Ranks that have waited for others for over a second."),
    "holdfast_silent_seconds": MetricSpec("Time since any rank advanced."),
    "holdfast_stall_limit_seconds": MetricSpec("Silence after which a hang is examined."),
    "holdfast_suspected_hang": MetricSpec("1 while a hang is suspected that may recover."),
    "holdfast_step": MetricSpec("Highest step of any rank."),
    "holdfast_step_spread": MetricSpec("Highest minus lowest step."),
    "holdfast_steps_per_second": MetricSpec("Steps per second: the median of all ranks."),
    "holdfast_wait_ratio": MetricSpec(
        "Share of the time in collectives: median and lowest of all ranks.", ("statistic",)
    ),
    "holdfast_rank_wait_ratio": MetricSpec(
        "Share of the time in collectives by rank; in large jobs of those that wait least.",
        ("rank", "host"),
    ),
    "holdfast_rank_memory_bytes": MetricSpec(
        "Resident memory by rank; in large jobs of the largest.", ("rank", "host")
    ),
    "holdfast_memory_bytes": MetricSpec(
        "Resident memory of a rank: median and highest.", ("statistic",)
    ),
    "holdfast_collective_seconds": MetricSpec(
        "Duration of recent collectives: shortest (of the rank that waits least), median, p99.",
        ("group", "operation", "statistic"),
    ),
    "holdfast_node_available_memory_bytes": MetricSpec(
        "Available host memory; in large jobs of the hosts with the least.", ("host",)
    ),
    "holdfast_gpu_temperature_celsius": MetricSpec(
        "GPU temperature; in large jobs of the hottest.", ("host", "gpu", "kind")
    ),
    "holdfast_gpu_kind_temperature_celsius": MetricSpec(
        "GPU temperature by kind: median and highest.", ("kind", "statistic")
    ),
    "holdfast_gpu_memory_used_bytes": MetricSpec(
        "Used GPU memory; in large jobs of the fullest.", ("host", "gpu", "kind")
    ),
    "holdfast_throttled_gpus": MetricSpec("GPUs that run below their clock, by kind.", ("kind",)),
    "holdfast_findings": MetricSpec("Findings about hosts and ranks by level.", ("level",)),
}


def collect_run(head: RunHead, reading: LiveReading) -> list[MetricSample]:
    """Return all samples of one run."""
    run = head.name
    state = reading.state
    is_live = state is not None and not reading.stale and head.ended is None
    samples = [
        MetricSample("holdfast_run_live", (run,), float(is_live)),
        MetricSample("holdfast_starts", (run,), head.starts),
        MetricSample("holdfast_failures", (run,), head.failures),
    ]
    if head.status is not None:
        samples.append(MetricSample("holdfast_run_status", (run,), head.status))
    if state is None or head.ended is not None:
        return samples
    samples += [
        MetricSample("holdfast_live_age_seconds", (run,), reading.age_s),
        MetricSample("holdfast_live_problems", (run,), len(reading.problems)),
    ]
    return samples if reading.stale else [*samples, *_live_samples(run, state)]


def _live_samples(run: str, state: LiveState) -> Iterable[MetricSample]:
    ranks = state.ranks
    for name, value in (
        ("holdfast_generation", state.generation),
        ("holdfast_world_size", state.world_size),
        ("holdfast_nodes", len(state.nodes)),
        ("holdfast_waiting_ranks", sum(wait != NONE for wait in ranks.wait)),
        ("holdfast_silent_seconds", max(state.at - state.silent_since, 0.0)),
        ("holdfast_stall_limit_seconds", state.stall_s),
        ("holdfast_suspected_hang", float(bool(state.notice))),
    ):
        yield MetricSample(name, (run,), value)
    lives = Counter(ranks.life)
    for number, life in enumerate(state.lives):
        yield MetricSample("holdfast_ranks", (run, life), lives[number])
    steps = [step for step in ranks.step if step is not None]
    rates = [rate for rate in ranks.rate if rate is not None]
    if steps:
        yield MetricSample("holdfast_step", (run,), max(steps))
        yield MetricSample("holdfast_step_spread", (run,), max(steps) - min(steps))
    if rates:
        yield MetricSample("holdfast_steps_per_second", (run,), median(rates))
    yield from _rank_samples(run, state)
    for latency in state.latencies[:MAX_LATENCIES]:
        statistics = {
            "shortest": latency.shortest_s,
            "median": latency.median_s,
            "p99": latency.longest_s,
        }
        for statistic, seconds in statistics.items():
            labels = (run, latency.group, latency.operation, statistic)
            yield MetricSample("holdfast_collective_seconds", labels, seconds)
    yield from _node_samples(run, state.nodes)
    for level, count in Counter(finding.level for finding in state.findings).items():
        yield MetricSample("holdfast_findings", (run, level), count)


def _rank_samples(run: str, state: LiveState) -> Iterable[MetricSample]:
    ranks = state.ranks
    hosts = [state.nodes[node].host if node != NONE else "" for node in ranks.node]
    waits = {at: share for at, share in enumerate(ranks.waited) if share is not None}
    memory = {at: size * _MIB for at, size in enumerate(ranks.memory) if size is not None}
    if waits:
        values = waits.values()
        yield MetricSample("holdfast_wait_ratio", (run, "median"), median(values))
        yield MetricSample("holdfast_wait_ratio", (run, "lowest"), min(values))
    if memory:
        values = memory.values()
        yield MetricSample("holdfast_memory_bytes", (run, "median"), median(values))
        yield MetricSample("holdfast_memory_bytes", (run, "highest"), max(values))
    for at in _conspicuous(waits, lambda at: waits[at]):
        labels = (run, str(ranks.rank[at]), hosts[at])
        yield MetricSample("holdfast_rank_wait_ratio", labels, waits[at])
    for at in _conspicuous(memory, lambda at: -memory[at]):
        labels = (run, str(ranks.rank[at]), hosts[at])
        yield MetricSample("holdfast_rank_memory_bytes", labels, memory[at])


def _node_samples(run: str, nodes: Sequence[NodeReading]) -> Iterable[MetricSample]:
    free = {
        node.host: node.memory_available_bytes
        for node in nodes
        if node.memory_available_bytes is not None
    }
    for host in _conspicuous(free, lambda host: free[host]):
        yield MetricSample("holdfast_node_available_memory_bytes", (run, host), free[host])
    gpus = {(node.host, str(gpu.index), gpu.name): gpu for node in nodes for gpu in node.gpus}
    heat = {key: gpu.temperature_c for key, gpu in gpus.items() if gpu.temperature_c is not None}
    used = {
        key: gpu.memory_used_bytes for key, gpu in gpus.items() if gpu.memory_used_bytes is not None
    }
    for key in _conspicuous(heat, lambda key: -heat[key]):
        yield MetricSample("holdfast_gpu_temperature_celsius", (run, *key), heat[key])
    for key in _conspicuous(used, lambda key: -used[key]):
        yield MetricSample("holdfast_gpu_memory_used_bytes", (run, *key), used[key])
    by_kind: dict[str, list[int]] = defaultdict(list)
    for (_, _, kind), temperature in heat.items():
        by_kind[kind].append(temperature)
    for kind, temperatures in by_kind.items():
        name = "holdfast_gpu_kind_temperature_celsius"
        yield MetricSample(name, (run, kind, "median"), median(temperatures))
        yield MetricSample(name, (run, kind, "highest"), max(temperatures))
    throttled = Counter(kind for (_, _, kind), gpu in gpus.items() if gpu.throttled)
    for kind in dict.fromkeys(kind for _, _, kind in gpus):
        yield MetricSample("holdfast_throttled_gpus", (run, kind), throttled[kind])


def _conspicuous(values: Mapping[_Key, float], order: Callable[[_Key], float]) -> list[_Key]:
    """Return all keys if they are few, else the first ones in that order."""
    return list(values) if len(values) <= EACH else sorted(values, key=order)[:OUTLIERS]
