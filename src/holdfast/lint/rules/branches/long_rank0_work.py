"""Long work on one rank while the others wait in a collective."""

from __future__ import annotations

from holdfast.causes.performance.rank0_long_work_timeout import RANK0_LONG_WORK_TIMEOUT
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation


def _message(divergence: Divergence) -> str:
    return (
        f"{divergence.detail} runs only under `{divergence.text}`; meanwhile the other ranks wait "
        f"in {describe_operation(divergence)}, which times out after the default 10 (NCCL) or 30 "
        "minutes (gloo)"
    )


RULE = Rule(
    name="long-rank0-work",
    cause=RANK0_LONG_WORK_TIMEOUT,
    tier=RuleTier.LATE,
    what_it_does=(
        "Finds downloads, subprocesses, conversions of files, evaluations in loops and passes over "
        "a loader or dataset on a single rank, while the others wait in a collective, in a program "
        "that keeps the default timeout of its process group."
    ),
    known_misses=(
        "The duration is not known: work is recognized by the library function, or by the name of "
        "a program function that contains a loop. Programs without a visible init_process_group "
        "are not checked."
    ),
    bad="""\
import subprocess

dist.init_process_group("nccl")
if dist.get_rank() == 0:
    subprocess.run(["python", "tokenize_corpus.py"])  # found
dist.barrier()
""",
    good="""\
import datetime
import subprocess

dist.init_process_group("nccl", timeout=datetime.timedelta(hours=2))
if dist.get_rank() == 0:
    subprocess.run(["python", "tokenize_corpus.py"])
dist.barrier()
""",
    kinds=("long",),
    message=_message,
)
