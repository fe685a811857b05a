"""NET012 launch-arguments-differ."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

LAUNCH_ARGUMENTS_DIFFER = Cause(
    code="NET012",
    name="launch-arguments-differ",
    summary="The hosts of one job were started with contradicting arguments, or the script expects "
    "another number of ranks than were started.",
    what_happens="Each host receives the number of nodes, its node rank and the endpoint. If two "
    "have the same node rank, or the numbers of nodes differ, the rendezvous waits for a node "
    "that never joins, or uses the first host's number and continues with fewer nodes than "
    "intended. A script that passes a larger `world_size` to init_process_group than the job has "
    "ranks waits there for the addresses of ranks that no launcher starts.",
    shows_before="`holdfast check` with several hosts compares them. A script was edited on one "
    "host, or a node rank is written in a file that all hosts share.",
    shows_during="All hosts wait, or the job runs with fewer ranks (torchrun's static rendezvous "
    "prints nothing).",
    shows_after="`Invalid rank requested`; `wait timeout … keys: /default_pg/0//cpu//0/2`, or "
    "`keys: /none/torchelastic/role_info/1`; or the results of a smaller job than intended.",
    known_misses="Of the script, only the world size is compared, under `holdfast run`. A smaller "
    "one is not reported: some scripts form several jobs on purpose.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="rank-arguments",
            tier=Tier.NAMED,
            confidence=0.75,
            sentence="the rank does not fit the number of ranks of the launch",
            patterns=(
                (
                    r"does not match the number of (?:hosts|nodes)|number of tasks per node "
                    r"configured"
                    r"|Invalid rank requested ?: ?\d+/\d+|[Ii]nvalid rank \d+, rank "
                    "should be in the interval"
                ),
                (
                    "EI0004: |ranktable .{0,60}invalid|Mismatch world_size|duplicate "
                    "(?:rank|node_rank)"
                ),
                "not enough slots available in the system",
                (
                    r"(?:[Ww]orld[_ ]?size|WORLD_SIZE"
                    r"|[Nn]umber of (?:GPUs|ranks|processes|devices))\W{0,4}(?:\d{1,6}\W{0,3})?"
                    r"(?:is not|must be|should be|needs to be) (?:evenly )?(?:divisible|a multiple)"
                ),
                (
                    r"(?:product of|parallel) .{0,80}(?:does not equal|!=|must (?:be equal to"
                    r"|equal)) .{0,40}(?:world[_ ]size|WORLD_SIZE|number of (?:GPUs|ranks|devices))"
                ),
            ),
            examples=(
                "n1:5:9 [0] NCCL WARN Invalid rank requested : 4/4",
                (
                    "AssertionError: world size (12) is not divisible by total_model_size "
                    "(tensor_model_parallel_size 4 * pipeline_model_parallel_size 2)"
                ),
                ("ValueError: the product of dp (2) * tp (4) * pp (2) must equal WORLD_SIZE (8)"),
                "ValueError: Invalid rank 4, rank should be in the interval [0, 3]",
                (
                    "EI0004: [PID: 811] 2026-02-03-04:05:06.1 The ranktable or rank is "
                    "invalid. Reason: rank_id 9 is out of range"
                ),
            ),
            counter_examples=("world size 8, number of ranks divisible by 4: ok",),
        ),
    ),
    remedies=(
        disruptive(
            "Let one launcher start all hosts, so that the numbers are defined in one place.",
            "srun --nodes N --ntasks-per-node 1 holdfast run --nnodes N --rdzv-endpoint "
            "MASTER_HOST:MASTER_PORT SCRIPT",
        ),
        by_hand(
            "In the script, call `dist.init_process_group(backend)` without rank and world_size: "
            "the launcher sets both in the environment."
        ),
        by_hand(
            "Start every host with the same command; only --node-rank may differ, from 0 to N - 1."
        ),
    ),
    sources=("torch: torch/distributed/elastic/agent/server/api.py",),
)
