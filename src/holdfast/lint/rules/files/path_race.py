"""Ranks that create, remove or test one path at the same time."""

from __future__ import annotations

from holdfast.causes.data.file_written_by_all_ranks import FILE_WRITTEN_BY_ALL_RANKS
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location

_MESSAGES = {
    "created": "all ranks test if {path} exists{place} and then create it: all but the first raise "
    "FileExistsError; pass exist_ok=True, or let one rank create it before a barrier",
    "removed": "all ranks remove {path}{place}: all but the first raise FileNotFoundError; let one "
    "rank remove it",
    "built": "all ranks run {path}{place} in one folder and overwrite each other's output; let one "
    "rank of each host build before a barrier",
    "numbered": "each rank derives {path}{place} from its own count of the entries in a folder "
    "that the others fill, so that ranks use different paths; count on rank 0 and "
    "broadcast the path",
    "clocked": "each rank makes {path} with its own time or random name, so that ranks use "
    "different folders; choose the name on rank 0 and broadcast it",
    "counted": "each rank searches for the first free name for {path}{place} while another one "
    "writes, so that ranks continue with different names; search on rank 0 and broadcast the name",
    "tested": "all ranks leave if {path} exists{place}, and one of them writes it right "
    "afterwards: a late rank sees the new file; test on rank 0 and broadcast the answer",
    "folder": "one rank removes {path} although other ranks may still use it at {guard}; wait in a "
    "barrier before",
    "unready": "all ranks write to {path} right after one rank prepared it at {guard}, which the "
    "others may be ahead of; wait in a barrier in between",
    "turn": "each rank removes {path} in its turn, although the first one may already have made it "
    "anew; let one rank remove it before a barrier",
    "group": "one rank of each group writes {path}, so that several ranks write it at once; test "
    "the global rank, or put the rank into the path",
    "admitted": "the test lets ranks 0 and 1 pass, and both write {path} at {guard}; compare with "
    "rank 0",
}


def _message(divergence: Divergence) -> str:
    guard = short_location(divergence.guard)
    place = "" if divergence.guard == divergence.location else f" at {guard}"
    path = f"`{divergence.text}`" if len(divergence.text) <= 80 else "a path"
    return _MESSAGES[divergence.kind].format(path=path, place=place, guard=guard)


RULE = Rule(
    name="path-race",
    cause=FILE_WRITTEN_BY_ALL_RANKS,
    tier=RuleTier.FAULT,
    what_it_does=(
        "Finds paths that ranks of a distributed program change at the same time: tested and then "
        "created without `exist_ok`, listed and then removed, numbered by a count of entries, "
        "tested while rank 0 writes them, made or removed as a folder without a barrier, removed "
        "by ranks in turn, written under a test that several ranks pass, or built with make."
    ),
    known_misses=(
        "A path, test, function, decorator or context manager with words that suggest a rank, host "
        "or process is assumed to be rank-specific, and so is a function with such a caller. Only "
        "code that itself, or whose caller, asks for the rank or enters collectives is checked. A "
        "line that only scripts of one process reach is checked with --strict only."
    ),
    bad="""\
import os


def prepare(folder):
    if not os.path.exists(folder):
        os.makedirs(folder)  # found
    dist.barrier()
""",
    good="""\
import os


def prepare(folder):
    os.makedirs(folder, exist_ok=True)
    dist.barrier()
""",
    kinds=tuple(_MESSAGES),
    message=_message,
)
