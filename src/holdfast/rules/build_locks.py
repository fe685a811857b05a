"""Ranks that wait for the lock of a build that nobody is at any more: extensions of torch are built when first used.

``torch.utils.cpp_extension`` lets one process build and the others wait until its lock file is gone. The file is no
lock of the kernel's: whoever was killed while it built leaves it behind, and every later job waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.facts.ranks import RankState
from holdfast.facts.user_code import innermost_user
from holdfast.findings import Fact, Finding, Subject, finding
from holdfast.report.ranksets import say_ranks
from holdfast.rules.causes import by_name

_WAITS = "/torch/utils/file_baton.py"
_BUILDS = "/torch/utils/cpp_extension.py"


def stale(ranks: Iterable[RankState]) -> list[Finding]:
    """The finding about ranks that wait for such a lock while no rank builds; none where one does."""
    inside = {state.rank: state for state in ranks if _is_in(state, _BUILDS)}
    waiting = {rank: state for rank, state in inside.items() if _is_in(state, _WAITS)}
    if not waiting or len(waiting) < len(inside):
        return []
    rank, state = min(waiting.items())
    place = innermost_user(state.stacks[-1])
    wait = "waits" if len(waiting) == 1 else "wait"
    message = (
        f"{say_ranks(waiting)} {wait} for the lock of a build of a torch extension, and no rank builds: whoever held "
        "it is gone, and its lock file was left behind"
    )
    host = state.host or None
    text = "in FileBaton.wait, which ends when the file `lock` in the extension's build folder is removed"
    fact = Fact(text=text, origin=state.stacks[-1].origin, rank=rank, host=host)
    subject = Subject(rank=rank, host=host, file=place.file if place else None, line=place.line if place else None)
    return [finding(by_name("stale-build-lock"), message, subject=subject, evidence=(fact,), confidence=0.8)]


def _is_in(state: RankState, file: str) -> bool:
    """True where the newest stack of the rank has a frame in that file."""
    return any(frame.file.endswith(file) for stack in state.stacks[-1:] for frame in stack.frames)
