"""A name made from ``hash`` of a text, which each process computes differently."""

from __future__ import annotations

from holdfast.causes.data.model_download_race import MODEL_DOWNLOAD_RACE
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    if divergence.kind == "random-name":
        return (
            f"each rank draws its own number for `{divergence.text}`: unless all have the same "
            "seed, they use different names; draw it on rank 0 and broadcast it"
        )
    return (
        f"`{divergence.text}` differs between processes (PYTHONHASHSEED), and all ranks use it in "
        "a name: they look for different files; use hashlib.sha256(text.encode()).hexdigest()"
    )


RULE = Rule(
    name="name-by-process-hash",
    cause=MODEL_DOWNLOAD_RACE,
    tier=RuleTier.DATA,
    what_it_does=(
        "Finds `hash()` in a name that all ranks build, such as that of a cache file: strings and "
        "most objects hash differently in each process unless PYTHONHASHSEED is set. Also finds "
        "random numbers in such a name, and sharded checkpoints in a folder that each rank names "
        "by its own clock, process number or UUID, through attributes, properties and "
        "arguments too."
    ),
    known_misses="Hashes that are stored in a variable before they become part of a name.",
    bad="""\
def cached(key, folder):
    dist.barrier()
    return torch.load(f"{folder}/{hash(key)}.pt", weights_only=True)  # found
""",
    good="""\
import hashlib


def cached(key, folder):
    dist.barrier()
    name = hashlib.sha256(key.encode()).hexdigest()
    return torch.load(f"{folder}/{name}.pt", weights_only=True)
""",
    kinds=("hashed", "random-name", "habit-name"),
    message=_message,
)
