"""Merge the stacks of all ranks into one prefix tree with sets of ranks, per thread name.

As in STAT, the tool for MPI jobs with a million tasks: ranks with equal stacks share a branch, so
that outliers are visible at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.stack_text import MAIN_THREAD
from holdfast.host.processes.user_code import is_library_frame
from holdfast.report.stack_tree import StackBranch, StackFrame, ThreadTree

#: Maximum depth of forks; below, each stack is a branch.
MAX_FORKS = 64
_UNNAMED = "thread "

#: Frames, outermost first.
_Frames = tuple[SourceLine, ...]
_RankedFrames = Sequence[tuple[_Frames, Sequence[int]]]


def merge_stacks(
    threads: Mapping[int, Sequence[ThreadStack]], changing: Collection[int] = ()
) -> tuple[ThreadTree, ...]:
    """Return one tree per thread name, that of the main threads first.

    ``threads`` holds the stacks of each rank; ``changing`` are the ranks whose main thread moved
    between two samples.
    """
    by_name: dict[str, dict[_Frames, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in sorted(threads):
        for stack in threads[rank]:
            if stack.frames:
                name = "other threads" if stack.thread.startswith(_UNNAMED) else stack.thread
                by_name[name][tuple(reversed(stack.frames))].append(rank)
    ordered = sorted(by_name.items(), key=lambda item: (item[0] != MAIN_THREAD, item[0]))
    return tuple(
        ThreadTree(
            name, _branches(list(stacks.items()), 0, changing if name == MAIN_THREAD else (), 0)
        )
        for name, stacks in ordered
    )


def _branches(
    stacks: _RankedFrames, begin: int, changing: Collection[int], forks: int
) -> tuple[StackBranch, ...]:
    """Return the branches from frame ``begin`` on, those with most ranks first."""
    groups: dict[object, list[tuple[_Frames, Sequence[int]]]] = defaultdict(list)
    for frames, ranks in stacks:
        if len(frames) > begin:
            key = frames[begin] if forks < MAX_FORKS else frames[begin:]
            groups[key].append((frames, ranks))
    branches = [_branch(group, begin, changing, forks) for group in groups.values()]
    return tuple(sorted(branches, key=lambda branch: (-len(branch.ranks), branch.ranks)))


def _branch(
    stacks: _RankedFrames, begin: int, changing: Collection[int], forks: int
) -> StackBranch:
    first = stacks[0][0]
    end = begin + 1  # all of these stacks share frame ``begin``
    while end < len(first) and all(
        len(frames) > end and frames[end] == first[end] for frames, _ in stacks
    ):
        end += 1
    ending_here = {rank for frames, ranks in stacks if len(frames) == end for rank in ranks}
    return StackBranch(
        ranks=tuple(sorted({rank for _, ranks in stacks for rank in ranks})),
        frames=tuple(_frame(line) for line in first[begin:end]),
        branches=_branches(stacks, end, changing, forks + 1),
        changing=tuple(sorted(ending_here & set(changing))),
    )


def _frame(line: SourceLine) -> StackFrame:
    name = line.file.rsplit("/", 1)[-1]
    text = f"{name}:{line.line} {line.function}".rstrip()
    return StackFrame(text, own=not is_library_frame(line.file))
