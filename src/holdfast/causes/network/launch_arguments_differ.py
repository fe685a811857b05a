"""NET012 launch-arguments-differ."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.findings import Cause

LAUNCH_ARGUMENTS_DIFFER = Cause(
    code="NET012",
    name="launch-arguments-differ",
    summary="The hosts of one job were started with contradicting arguments.",
    what_happens="Each host receives the number of nodes, its node rank and the endpoint. If two "
    "have the same node rank, or the numbers of nodes differ, the rendezvous waits for a node that "
    "never joins, or uses the first host's number and continues with fewer nodes than intended.",
    shows_before="`holdfast check` with several hosts compares them. A script was edited on one "
    "host, or a node rank is written in a file that all hosts share.",
    shows_during="All hosts wait, or the job runs with fewer ranks (torchrun's static rendezvous "
    "prints nothing).",
    shows_after="`wait timeout … keys: /default_pg/0//cpu//0/2`, or `keys: "
    "/none/torchelastic/role_info/1`; or the results of a smaller job than intended.",
    known_misses="Arguments of the training script itself are not compared.",
    remedies=(
        disruptive(
            "Let one launcher start all hosts, so that the numbers are defined in one place.",
            "srun --nodes N --ntasks-per-node 1 holdfast run --nnodes N --rdzv-endpoint "
            "MASTER_HOST:MASTER_PORT SCRIPT",
        ),
        by_hand(
            "Start every host with the same command; only --node-rank may differ, from 0 to N - 1."
        ),
    ),
    sources=("torch: torch/distributed/elastic/agent/server/api.py",),
)
