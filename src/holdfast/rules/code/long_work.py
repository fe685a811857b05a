"""Long work of one rank, while the others wait in a collective for it."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation


def _wants(parting: Parting) -> bool:
    return parting.kind == "long"


def _says(parting: Parting) -> str:
    return (
        f"{parting.how} runs only where `{parting.text}` holds; the others wait in {operation(parting)} meanwhile, and "
        "no longer than the default limit of 10 (NCCL) or 30 minutes (gloo)"
    )


RULE = Rule(
    name="long-rank0-work",
    cause=by_name("rank0-long-work-timeout"),
    tier=Tier.LATE,
    what_it_does="Finds downloads, other programs, passes over a loader or a data set on one rank alone, with a "
    "collective of all behind them, in a program that leaves the limit of its process group at the default.",
    known_misses="How long work takes is not known: it is told by the library's function, or by the name of the "
    "program's own where there is a loop in it. Programs whose init_process_group is not seen are left alone.",
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
    wants=_wants,
    says=_says,
)
