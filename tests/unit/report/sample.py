"""Sample incidents: rank 2 sleeps at examples/rvq/train.py:141, the others are blocked in all_reduce #31."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from holdfast.core.findings import Fact, Finding, Level, Remedy, RuledOut, Safety, Subject, Verdict
from holdfast.core.rank_sets import RankGroup
from holdfast.report.timeline import Timeline, TimelineLane, TimelineSpan

START = 1_795_245_600.0  # 2026-11-21 07:20:00 UTC
SCRIPT = "examples/rvq/train.py"
STEP_S = 0.061
STUCK_AT = 31
SILENCE_S = 6.1

WAITING_STACK = (
    "_engine_run_backward (torch/autograd/graph.py:869)",
    "backward (torch/autograd/__init__.py:364)",
    "backward (torch/_tensor.py:648)",
    f"train_step ({SCRIPT}:97)",
    f"train ({SCRIPT}:188)",
    f"main ({SCRIPT}:231)",
    f"<module> ({SCRIPT}:236)",
)
ASLEEP_STACK = (
    f"next_batch ({SCRIPT}:141)",
    f"train ({SCRIPT}:183)",
    f"main ({SCRIPT}:231)",
    f"<module> ({SCRIPT}:236)",
)


@dataclass(frozen=True)
class Incident:
    """The input of all renderers for one incident."""

    verdict: Verdict
    timeline: Timeline
    facts: tuple[Fact, ...]
    stacks: dict[int, tuple[str, ...]]
    groups: tuple[RankGroup, ...]
    run: dict[str, str] = field(default_factory=dict)
    title: str = "incident 0"


def incident(ranks: int = 4, stuck: int = 2, per_host: int = 8) -> Incident:
    """Return an incident in which rank ``stuck`` sleeps and the others wait in DDP's all_reduce."""
    others = tuple(rank for rank in range(ranks) if rank != stuck)
    lanes = tuple(_lane(rank, stuck, per_host) for rank in range(ranks))
    end = max(span.start for lane in lanes for span in lane.spans) + SILENCE_S
    return Incident(
        verdict=_verdict(others, stuck, _host(stuck, per_host), end),
        timeline=Timeline(lanes, START, end),
        facts=_facts(ranks, per_host),
        stacks={rank: ASLEEP_STACK if rank == stuck else WAITING_STACK for rank in range(ranks)},
        groups=(
            RankGroup((stuck,), "asleep in time.sleep", f"{SCRIPT}:141 in next_batch()"),
            RankGroup(
                others,
                f"in all_reduce #{STUCK_AT} of group default_pg",
                f"{SCRIPT}:97 in train_step()",
            ),
        ),
        run={
            "run": "20261121-071958-4f2a",
            "command": f"holdfast run --nproc-per-node {min(ranks, per_host)} {SCRIPT} --max-steps 200",
            "ranks": str(ranks),
            "generation": "0",
            "decision": "restart 1 of 3",
        },
    )


def _host(rank: int, per_host: int) -> str:
    return f"node-{rank // per_host:02d}"


def _lane(rank: int, stuck: int, per_host: int) -> TimelineLane:
    jitter = random.Random(rank)
    spans = [
        TimelineSpan(
            START, START + 0.4, "init_process_group", "init_process_group", "gloo, 10 min limit"
        )
    ]
    moment = START + 1.3
    for number in range(1, STUCK_AT):
        begin = moment + jitter.uniform(0.030, 0.038)
        finish = moment + 0.052
        spans.append(
            TimelineSpan(
                begin,
                finish,
                f"all_reduce #{number}",
                "all_reduce",
                f"default_pg, float32 x 26,640, {SCRIPT}:97",
            )
        )
        if number % 10 == 5:
            spans.append(
                TimelineSpan(
                    finish + 0.001,
                    finish + 0.006,
                    f"broadcast #{number // 10 + 1}",
                    "broadcast",
                    "default_pg, int64 x 256",
                )
            )
        moment += STEP_S
    if rank == stuck:
        return TimelineLane(
            rank,
            _host(rank, per_host),
            tuple(spans),
            "asleep",
            f"{SCRIPT}:141 in next_batch()",
            ASLEEP_STACK,
        )
    begin = moment + jitter.uniform(0.030, 0.038)
    spans.append(
        TimelineSpan(
            begin,
            None,
            f"all_reduce #{STUCK_AT}",
            "all_reduce",
            f"default_pg, float32 x 26,640, {SCRIPT}:97",
        )
    )
    return TimelineLane(
        rank,
        _host(rank, per_host),
        tuple(spans),
        "waiting",
        f"{SCRIPT}:97 in train_step()",
        WAITING_STACK,
    )


def _verdict(others: tuple[int, ...], stuck: int, host: str, end: float) -> Verdict:
    return Verdict(
        question="why does the job no longer advance?",
        root=_root(stuck, host, end),
        consequences=tuple(_waits(rank, stuck) for rank in others),
        ruled_out=(
            RuledOut("rank-died", "every process of the job is alive"),
            RuledOut("rank-stopped", f"rank {stuck} is in state S (sleeping), not T (stopped)"),
            RuledOut(
                "collective-mismatch",
                "all ranks that entered all_reduce #31 brought the same shape and dtype",
            ),
        ),
        unseen=("kernel log: reading it needs more rights than this job has",),
    )


def _root(stuck: int, host: str, end: float) -> Finding:
    return Finding(
        code="SYNC002",
        cause="rank-missing-collective",
        level=Level.ERROR,
        message=f"rank {stuck} never entered all_reduce #{STUCK_AT} — asleep at {SCRIPT}:141 in next_batch()",
        subject=Subject(rank=stuck, host=host, file=SCRIPT, line=141),
        evidence=(
            Fact(
                text=f"rank {stuck} completed all_reduce #30 of group default_pg and has entered nothing since",
                origin=f"trace of rank {stuck}",
                rank=stuck,
                host=host,
                time=end - SILENCE_S,
            ),
            Fact(
                text=f"two stacks 1.0 s apart agree: time.sleep at {SCRIPT}:141 in next_batch()",
                origin="py-spy",
                rank=stuck,
                host=host,
                time=end - 0.9,
            ),
            Fact(
                text="used 0.00 s of CPU between them",
                origin="/proc/4123/stat",
                rank=stuck,
                host=host,
                time=end - 0.9,
            ),
        ),
        remedies=(
            Remedy(
                text=f"Remove the wait at {SCRIPT}:141, or let all ranks wait there",
                safety=Safety.BY_HAND,
            ),
            Remedy(
                text="Restart from the last checkpoint",
                command=f"holdfast run --max-restarts 3 --nproc-per-node 4 {SCRIPT} --resume --checkpoint-dir saved",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        confidence=0.97,
    )


def _waits(rank: int, stuck: int) -> Finding:
    return Finding(
        code="SYNC001",
        cause="rank-waits-for-others",
        level=Level.NOTE,
        message=f"rank {rank} is blocked in all_reduce #{STUCK_AT} of group default_pg, waiting for rank {stuck}",
        subject=Subject(rank=rank, file=SCRIPT, line=97),
    )


def _facts(ranks: int, per_host: int) -> tuple[Fact, ...]:
    texts = (
        ("torch 2.13.0+cpu", "importlib.metadata"),
        ("Python 3.11.9", "sys.version"),
        ("backend gloo", "torch.distributed"),
        ("OMP_NUM_THREADS=1", "environment, set by holdfast run"),
        ("2 cores, 15.6 GiB of memory, 9.8 GiB free", "/proc/meminfo, sched_getaffinity"),
    )
    return tuple(
        Fact(text=text, origin=origin, rank=rank, host=_host(rank, per_host), time=START)
        for rank in range(ranks)
        for text, origin in texts
    )
