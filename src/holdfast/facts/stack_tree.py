"""Merges the stacks of all ranks into one prefix tree with sets of ranks, thread by thread.

As the tool STAT does for MPI jobs of a million tasks: ranks that are in the same place, by the same way, are one
branch, and whoever stands apart is seen at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from holdfast.facts.ranks import Place, Stack
from holdfast.facts.stack_text import MAIN
from holdfast.facts.user_code import is_machinery
from holdfast.report.stacks import Branch, Frame, ThreadTree

#: Forks, one behind the other, that are followed; what comes after is written once for each way.
MOST_FORKS = 64
_UNNAMED = "thread "

Way = tuple[Place, ...]


def merge(threads: Mapping[int, Sequence[Stack]], changing: Collection[int] = ()) -> tuple[ThreadTree, ...]:
    """One tree for each name of a thread, that of the main threads first.

    ``threads`` holds the stacks of each rank; ``changing`` are the ranks whose main thread moved between two samples.
    """
    ways: dict[str, dict[Way, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in sorted(threads):
        for stack in threads[rank]:
            if stack.frames:
                ways[_name(stack.thread)][tuple(reversed(stack.frames))].append(rank)
    ordered = sorted(ways.items(), key=lambda item: (item[0] != MAIN, item[0]))
    return tuple(
        ThreadTree(name, _branches(list(same.items()), 0, changing if name == MAIN else (), 0))
        for name, same in ordered
    )


def _name(thread: str) -> str:
    """The name of a thread; those that have none of their own share one."""
    return "other threads" if thread.startswith(_UNNAMED) else thread


def _branches(
    ways: Sequence[tuple[Way, Sequence[int]]], begin: int, changing: Collection[int], forks: int
) -> tuple[Branch, ...]:
    """The branches from frame ``begin`` on, the one with most ranks first."""
    groups: dict[object, list[tuple[Way, Sequence[int]]]] = defaultdict(list)
    for way, ranks in ways:
        if len(way) > begin:
            groups[way[begin] if forks < MOST_FORKS else way[begin:]].append((way, ranks))
    made = [_branch(same, begin, changing, forks) for same in groups.values()]
    return tuple(sorted(made, key=lambda branch: (-len(branch.ranks), branch.ranks)))


def _branch(same: Sequence[tuple[Way, Sequence[int]]], begin: int, changing: Collection[int], forks: int) -> Branch:
    end = _shared(same, begin)
    here = [rank for way, ranks in same if len(way) == end for rank in ranks]
    return Branch(
        ranks=tuple(sorted({rank for _, ranks in same for rank in ranks})),
        frames=tuple(_frame(place) for place in same[0][0][begin:end]),
        branches=_branches(same, end, changing, forks + 1),
        changing=tuple(sorted(set(here) & set(changing))),
    )


def _shared(same: Sequence[tuple[Way, Sequence[int]]], begin: int) -> int:
    """Up to which frame all these ways are one; the first of them is shared for sure."""
    first = same[0][0]
    end = begin + 1
    while all(len(way) > end and way[end] == first[end] for way, _ in same) and end < len(first):
        end += 1
    return end


def _frame(place: Place) -> Frame:
    name = place.file.rsplit("/", 1)[-1]
    return Frame(f"{name}:{place.line} {place.function}".rstrip(), not is_machinery(place.file))
