"""The stacks of many ranks as one tree: what most ranks share is written once, and where they fork, who goes where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.report.document import Row
from holdfast.report.ranksets import rank_label

#: Frames of one branch that are written on a terminal: the outermost and the innermost.
FRAMES_SHOWN = 6


class Frame(msgspec.Struct, frozen=True):
    """One line of code on a stack; ``own`` is True for the user's, False for that of torch and other packages."""

    text: str
    own: bool


class Branch(msgspec.Struct, frozen=True):
    """Frames that all of ``ranks`` share, outermost first, and the ways on which they go on from there.

    ``changing`` are the ranks whose stack ends here and was another one in the sample before.
    """

    ranks: tuple[int, ...]
    frames: tuple[Frame, ...]
    branches: tuple[Branch, ...] = ()
    changing: tuple[int, ...] = ()


class ThreadTree(msgspec.Struct, frozen=True):
    """The tree of all threads of one name."""

    thread: str
    branches: tuple[Branch, ...]


def rows(trees: Sequence[ThreadTree]) -> list[Row]:
    """The trees as rows for a terminal: a set of ranks beside the frames that only these ranks have in common."""
    return [row for tree in trees for branch in tree.branches for row in _branch(branch, tree.thread, 0)]


def _branch(branch: Branch, thread: str, depth: int) -> Iterable[Row]:
    frames = [frame.text for frame in branch.frames if frame.own] or [frame.text for frame in branch.frames[:1]]
    if not branch.branches and branch.frames and not branch.frames[-1].own:
        frames.append(branch.frames[-1].text)
    if len(frames) > FRAMES_SHOWN:
        frames = [*frames[: FRAMES_SHOWN // 2], "…", *frames[-FRAMES_SHOWN // 2 :]]
    name = f"[{thread}] " if depth == 0 and thread else ""
    moving = f"rank {rank_label(branch.changing)} changing" if branch.changing else ""
    yield Row(
        "  " * depth + ("└ " if depth else "") + name + " > ".join(frames), mark=rank_label(branch.ranks), aside=moving
    )
    for each in branch.branches:
        yield from _branch(each, thread, depth + 1)
