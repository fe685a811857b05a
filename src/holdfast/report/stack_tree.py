"""Render the merged stacks of many ranks as a tree: shared frames once, with ranks per branch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core.rank_sets import rank_label
from holdfast.report.document import ReportRow

#: Maximum printed frames of one branch: the outermost and the innermost.
MAX_FRAMES = 6


class StackFrame(msgspec.Struct, frozen=True):
    """One frame of a stack; ``own``: it is user code, not torch or another package."""

    text: str
    own: bool


class StackBranch(msgspec.Struct, frozen=True):
    """Frames that all of ``ranks`` share, outermost first, and the branches below them.

    ``changing`` are the ranks whose stack ends here and differed in the previous sample.
    """

    ranks: tuple[int, ...]
    frames: tuple[StackFrame, ...]
    branches: tuple[StackBranch, ...] = ()
    changing: tuple[int, ...] = ()


class ThreadTree(msgspec.Struct, frozen=True):
    """The tree of all threads with one name."""

    thread: str
    branches: tuple[StackBranch, ...]


def tree_rows(trees: Sequence[ThreadTree]) -> list[ReportRow]:
    """Return terminal tree_rows: a set of ranks beside the frames that only these ranks share."""
    return [
        row
        for tree in trees
        for branch in tree.branches
        for row in _branch_rows(branch, tree.thread, 0)
    ]


def _branch_rows(branch: StackBranch, thread: str, depth: int) -> Iterable[ReportRow]:
    frames = [frame.text for frame in branch.frames if frame.own] or [
        frame.text for frame in branch.frames[:1]
    ]
    if not branch.branches and branch.frames and not branch.frames[-1].own:
        frames.append(branch.frames[-1].text)
    if len(frames) > MAX_FRAMES:
        frames = [*frames[: MAX_FRAMES // 2], "…", *frames[-MAX_FRAMES // 2 :]]
    name = f"[{thread}] " if depth == 0 and thread else ""
    moving = f"rank {rank_label(branch.changing)} changing" if branch.changing else ""
    yield ReportRow(
        "  " * depth + ("└ " if depth else "") + name + " > ".join(frames),
        mark=rank_label(branch.ranks),
        aside=moving,
    )
    for each in branch.branches:
        yield from _branch_rows(each, thread, depth + 1)
