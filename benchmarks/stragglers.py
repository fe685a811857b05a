"""Slow ranks, hosts and links: precision and recall on simulated jobs of known truth.

64 ranks on 8 hosts, one minute, in real trace files; the seed decides who is slow and by how much.
The peer is the scoring of NVIDIA's resiliency extension
(nvidia_resiliency_ext/attribution/straggler/reporting.py, commit d8686d9), reimplemented here: the
extension itself needs CUPTI and a process group. A GPU's score is the mean over its kernels,
weighted by their total time, of reference median / own median; the reference is the best rank
(relative) or the rank's own best earlier report (individual); a rank below 0.75 is a straggler.
Its kernels are here the four computations of a step, with three reports in the minute; it leaves
out the kernels of NCCL, so do we.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.simulated_job import DATA_S, LANES, JobModel, Timeline, simulate, write_traces
from holdfast.core.findings import Finding
from holdfast.core.rank_table import ProcessState, RankState
from holdfast.watcher.job_summary import JobSummary, combine_summaries
from holdfast.watcher.rules import slow_links, straggler
from holdfast.watcher.trace_reader import TraceReading
from holdfast.watcher.wait_times import SLICES, WaitTimes

HOSTS, RANKS, WINDOW_S = 8, 64, 60.0
SEEDS = 10
THRESHOLD, REPORTS = 0.75, 3
BEGIN = 1_800_000_000.0


@dataclass(frozen=True)
class Accusation:
    """What is accused: ``kind`` is rank, host or link; ``ranks`` are the accused ranks."""

    kind: str
    ranks: frozenset[int]


@dataclass(frozen=True)
class Scenario:
    """A job, the kind of GPU of each host, and the truth (None: healthy)."""

    model: JobModel
    devices: Sequence[str]
    truth: Accusation | None


def _one_kind() -> list[str]:
    return ["GPU A"] * HOSTS


def _steps(speed: np.ndarray) -> int:
    return int(1.15 * WINDOW_S / (0.4 * float(speed.max()) + 0.06)) + 1


def _slow(
    kind: str, ranks: Sequence[int], random: np.random.Generator, by: tuple[float, float] = (1.4, 2)
) -> Scenario:
    speed = np.ones(RANKS)
    speed[list(ranks)] = random.uniform(*by)
    model = JobModel(HOSTS, _steps(speed), speed)
    return Scenario(model, _one_kind(), Accusation(kind, frozenset(ranks)))


def slow_rank(random: np.random.Generator) -> Scenario:
    """One rank computes 1.4 to 2 times as long."""
    return _slow("rank", [int(random.integers(RANKS))], random)


def little_slower_rank(random: np.random.Generator) -> Scenario:
    """One rank computes 1.2 to 1.4 times as long."""
    return _slow("rank", [int(random.integers(RANKS))], random, (1.2, 1.4))


def slow_host(random: np.random.Generator) -> Scenario:
    """All ranks of a host compute 1.4 to 2 times as long."""
    host = int(random.integers(HOSTS))
    return _slow("host", range(host * LANES, (host + 1) * LANES), random)


def slow_link(random: np.random.Generator) -> Scenario:
    """The data-parallel all-reduce of one lane takes 3 to 6 times as long."""
    lane = int(random.integers(LANES))
    lane_s = np.full(LANES, DATA_S)
    lane_s[lane] *= random.uniform(3.0, 6.0)
    model = JobModel(HOSTS, _steps(np.ones(RANKS)), np.ones(RANKS), lane_s)
    return Scenario(model, _one_kind(), Accusation("link", frozenset(range(lane, RANKS, LANES))))


def unlike_gpus(random: np.random.Generator) -> Scenario:
    """Healthy: two to six hosts have GPUs that are 1.5 to 2.2 times slower."""
    slower = int(random.integers(2, 7))
    speed = np.ones(RANKS)
    speed[-slower * LANES :] = random.uniform(1.5, 2.2)
    devices = ["GPU A"] * (HOSTS - slower) + ["GPU B"] * slower
    return Scenario(JobModel(HOSTS, _steps(speed), speed), devices, None)


def slow_rank_of_unlike_gpus(random: np.random.Generator) -> Scenario:
    """Half of the hosts have slower GPUs, and one of these ranks is 1.4 to 2 times slower still."""
    rank = int(random.integers(RANKS // 2, RANKS))
    speed = np.ones(RANKS)
    speed[RANKS // 2 :] = 1.5
    speed[rank] *= random.uniform(1.4, 2.0)
    devices = ["GPU A"] * (HOSTS // 2) + ["GPU B"] * (HOSTS // 2)
    return Scenario(
        JobModel(HOSTS, _steps(speed), speed), devices, Accusation("rank", frozenset([rank]))
    )


def noisy(random: np.random.Generator) -> Scenario:
    """Healthy: computations vary by 20%, ranks stall now and then, and rank 0 is away for 8 s."""
    model = JobModel(HOSTS, 160, np.ones(RANKS), noise=0.2, stalls=0.01)
    model.pause = (int(random.integers(20, 60)), 8.0)
    return Scenario(model, _one_kind(), None)


def very_noisy(_: np.random.Generator) -> Scenario:
    """Healthy: computations vary by 60%, and 3% of the steps of a rank take three times as long."""
    return Scenario(JobModel(HOSTS, 110, np.ones(RANKS), noise=0.6, stalls=0.03), _one_kind(), None)


def unequal_gpus(random: np.random.Generator) -> Scenario:
    """Healthy: the speeds of GPUs of one kind have a standard deviation of 4%."""
    speed = random.normal(1.0, 0.04, RANKS).clip(0.9, 1.1)
    return Scenario(JobModel(HOSTS, 120, speed, noise=0.05), _one_kind(), None)


def unequal_links(random: np.random.Generator) -> Scenario:
    """Healthy: the transfers of the lanes take 40 to 65 ms."""
    lane_s = random.uniform(0.04, 0.065, LANES)
    return Scenario(JobModel(HOSTS, 130, np.ones(RANKS), lane_s), _one_kind(), None)


def variable_batches(random: np.random.Generator) -> Scenario:
    """Healthy: each rank's batch has another length, so that its steps vary by 35%."""
    factors = random.lognormal(0.0, 0.35, (120, RANKS))
    return Scenario(JobModel(HOSTS, 120, np.ones(RANKS), factors=factors), _one_kind(), None)


def rank_0_logs(random: np.random.Generator) -> Scenario:
    """Healthy: rank 0 logs for 0.4 to 0.8 s every 4 to 8 steps; the others wait meanwhile."""
    return _extra_work(random, int(random.integers(4, 9)), random.uniform(0.4, 0.8))


def rank_0_saves(random: np.random.Generator) -> Scenario:
    """Healthy: rank 0 saves for 1.5 to 3 s every 10 to 15 steps."""
    return _extra_work(random, int(random.integers(10, 16)), random.uniform(1.5, 3.0))


def _extra_work(random: np.random.Generator, every: int, seconds: float) -> Scenario:
    extra_s = np.zeros((150, RANKS))
    extra_s[::every, 0] = seconds * random.lognormal(0.0, 0.1, len(extra_s[::every, 0]))
    return Scenario(JobModel(HOSTS, 150, np.ones(RANKS), extra_s=extra_s), _one_kind(), None)


def collections_everywhere(random: np.random.Generator) -> Scenario:
    """Healthy: 2% of the steps of every rank pause for 0.3 to 0.8 s (garbage collection)."""
    pauses = random.uniform(0.3, 0.8, (130, RANKS)) * (random.random((130, RANKS)) < 0.02)
    return Scenario(JobModel(HOSTS, 130, np.ones(RANKS), extra_s=pauses), _one_kind(), None)


def shared_hosts(random: np.random.Generator) -> Scenario:
    """Healthy: other work makes each host 1.3 to 2 times slower for 3 to 10 steps, now and then."""
    factors = np.ones((130, RANKS))
    for _ in range(20):
        host, begin = int(random.integers(HOSTS)), int(random.integers(130))
        steps = slice(begin, begin + int(random.integers(3, 11)))
        factors[steps, host * LANES : (host + 1) * LANES] *= random.uniform(1.3, 2.0)
    return Scenario(JobModel(HOSTS, 130, np.ones(RANKS), factors=factors), _one_kind(), None)


def warm_up(random: np.random.Generator) -> Scenario:
    """Healthy: all ranks begin 1.5 to 3 times slower, and become faster at different paces."""
    slower, pace = random.uniform(0.5, 2.0, RANKS), random.uniform(5.0, 25.0, RANKS)
    factors = 1.0 + slower * np.exp(-np.arange(120)[:, None] / pace)
    return Scenario(JobModel(HOSTS, 120, np.ones(RANKS), factors=factors), _one_kind(), None)


def slow_rank_of_variable_batches(random: np.random.Generator) -> Scenario:
    """Steps vary by 35%, and one rank computes 1.6 to 2.2 times as long."""
    rank = int(random.integers(RANKS))
    speed = np.ones(RANKS)
    speed[rank] = random.uniform(1.6, 2.2)
    factors = random.lognormal(0.0, 0.35, (110, RANKS))
    model = JobModel(HOSTS, 110, speed, factors=factors)
    return Scenario(model, _one_kind(), Accusation("rank", frozenset([rank])))


def slow_rank_0_that_logs(random: np.random.Generator) -> Scenario:
    """Rank 0 computes 1.4 to 2 times as long, and logs for 0.3 s every 6 steps."""
    scenario = _slow("rank", [0], random)
    extra_s = np.zeros((scenario.model.steps, RANKS))
    extra_s[::6, 0] = 0.3
    scenario.model.extra_s = extra_s
    return scenario


def rank_that_pauses(random: np.random.Generator) -> Scenario:
    """One rank pauses for 0.5 to 1.5 s in 25% of its steps, irregularly."""
    rank = int(random.integers(RANKS))
    extra_s = np.zeros((120, RANKS))
    extra_s[:, rank] = random.uniform(0.5, 1.5, 120) * (random.random(120) < 0.25)
    model = JobModel(HOSTS, 120, np.ones(RANKS), extra_s=extra_s)
    return Scenario(model, _one_kind(), Accusation("rank", frozenset([rank])))


SCENARIOS = (
    slow_rank,
    little_slower_rank,
    slow_host,
    slow_link,
    unlike_gpus,
    slow_rank_of_unlike_gpus,
    noisy,
    very_noisy,
    unequal_gpus,
    unequal_links,
    variable_batches,
    rank_0_logs,
    rank_0_saves,
    collections_everywhere,
    shared_hosts,
    warm_up,
    slow_rank_of_variable_batches,
    slow_rank_0_that_logs,
    rank_that_pauses,
)


def findings_of(folder: Path, scenario: Scenario, times: Timeline) -> Iterator[Finding]:
    """Yield what holdfast finds in the trace files of ``scenario``."""
    write_traces(folder, times, HOSTS, range(RANKS), BEGIN)
    summaries = []
    end = BEGIN + min(float(times.completed.max()), WINDOW_S + 2 * WINDOW_S / SLICES)
    for host in range(HOSTS):
        ranks = range(host * LANES, (host + 1) * LANES)
        traces = {rank: TraceReading(folder / f"rank{rank}.trace") for rank in ranks}
        waiting = WaitTimes(WINDOW_S)
        waiting.measure(traces, BEGIN)
        waiting.measure(traces, end)
        states = tuple(
            RankState(
                rank=rank,
                host=f"node{host}",
                life=ProcessState.RUNNING,
                waits=waiting.slices(rank),
                extra_work=waiting.extra_work(rank),
                device=scenario.devices[host],
            )
            for rank in ranks
        )
        groups = {name: group for trace in traces.values() for name, group in _groups(trace)}
        summaries.append(JobSummary(states, groups, RANKS, end, end, timings=waiting.timings))
    table = combine_summaries(summaries, end, 5.0)
    verdict = straggler.judge(table.ranks, RANKS)
    if verdict is not None and verdict.root is not None:
        yield verdict.root
    hosts = {state.rank: state.host for state in table.ranks}
    link = slow_links.judge(table.timings, table.groups, hosts)
    if link is not None:
        yield link


def _groups(trace: TraceReading) -> Iterator[tuple[str, object]]:
    yield from trace.read_notes().groups().items()


def accusation(finding: Finding) -> Accusation:
    """Return what ``finding`` accuses."""
    subject = finding.subject
    if subject.link is not None:
        lane = int(subject.link.removeprefix("dp"))
        return Accusation("link", frozenset(range(lane, RANKS, LANES)))
    host = int((subject.host or "node0").removeprefix("node"))
    if subject.rank is None or finding.message.startswith("the ranks on"):
        return Accusation("host", frozenset(range(host * LANES, (host + 1) * LANES)))
    return Accusation("rank", frozenset([subject.rank]))


def nvidia_scores(times: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Return the relative and the individual GPU scores of the last report."""
    reports = np.array_split(times.computed, REPORTS)
    medians = [np.median(report, axis=0) for report in reports]  # (kernel, rank)
    weights = reports[-1].sum(axis=0)
    own_best = np.min(medians, axis=0)
    best = medians[-1].min(axis=1, keepdims=True)
    relative, individual = (
        (reference / medians[-1] * weights).sum(axis=0) / weights.sum(axis=0)
        for reference in (best, own_best)
    )
    return relative, individual


def nvidia_accuses(times: Timeline) -> Accusation | None:
    """Return the ranks that NVIDIA's extension accuses with its default thresholds."""
    low = np.flatnonzero(np.minimum(*nvidia_scores(times)) < THRESHOLD)
    return Accusation("rank", frozenset(low.tolist())) if len(low) else None


class Tally:
    """Counts of right and wrong accusations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.right = self.wrong = self.faulty = 0

    def add(self, accused: Sequence[Accusation], truth: Accusation | None, *, right: bool) -> bool:
        """Count a job; return whether it was judged right."""
        self.faulty += truth is not None
        self.right += right
        self.wrong += bool(accused) and not right
        return right or (truth is None and not accused)

    def line(self) -> str:
        """Return precision and recall."""
        accused = self.right + self.wrong
        precision = f"{self.right / accused:.2f}" if accused else "none accused"
        return (
            f"{self.name}: precision {precision}, recall {self.right / max(self.faulty, 1):.2f} "
            f"({self.wrong} false of {accused} accusations)"
        )


def main() -> None:
    """Print a line per scenario, then precision and recall.

    Arguments: the number of seeds, and the names of scenarios; without names, all.
    """
    ours, theirs = Tally("holdfast"), Tally("NVIDIA's scores")
    seeds = next((int(word) for word in sys.argv[1:] if word.isdigit()), SEEDS)
    names = [word for word in sys.argv[1:] if not word.isdigit()]
    for scenario_of in SCENARIOS:
        if names and scenario_of.__name__ not in names:
            continue
        right = [0, 0]
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            scenario = scenario_of(random)
            times = simulate(scenario.model, random)
            with tempfile.TemporaryDirectory() as folder:
                found = [accusation(each) for each in findings_of(Path(folder), scenario, times)]
            truth = scenario.truth
            right[0] += ours.add(found, truth, right=found == [truth])
            peer = nvidia_accuses(times)
            same = peer is not None and truth is not None and peer.ranks == truth.ranks
            right[1] += theirs.add([peer] if peer else [], truth, right=same)
        print(
            f"{scenario_of.__name__:25} right: holdfast {right[0]} of {seeds}, "
            f"NVIDIA's scores {right[1]} of {seeds}",
            flush=True,
        )
    print(ours.line())
    print(theirs.line())


if __name__ == "__main__":
    main()
