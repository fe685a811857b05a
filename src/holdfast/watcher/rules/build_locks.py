"""Ranks that wait for the lock of a torch extension build after its builder has died.

``torch.utils.cpp_extension`` lets one process build while the others wait until its lock file is
gone. It is no kernel lock: a process killed during the build leaves it behind, and every later job
waits forever.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.causes.process.stale_build_lock import STALE_BUILD_LOCK
from holdfast.core.findings import Fact, Finding, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState
from holdfast.host.processes.user_code import innermost_user_frame
from holdfast.watcher.rules.subjects import rank_subject

_WAITS = "/torch/utils/file_baton.py"
_BUILDS = "/torch/utils/cpp_extension.py"


def stale_locks(ranks: Iterable[RankState]) -> list[Finding]:
    """Return the finding about ranks that wait for such a lock while no rank builds."""
    inside = {state.rank: state for state in ranks if _is_in(state, _BUILDS)}
    waiting = {rank: state for rank, state in inside.items() if _is_in(state, _WAITS)}
    if not waiting or len(waiting) < len(inside):
        return []
    rank, state = min(waiting.items())
    line = innermost_user_frame(state.stacks[-1])
    verb = "waits" if len(waiting) == 1 else "wait"
    message = (
        f"{describe_ranks(waiting)} {verb} for the build lock of a torch extension, but no rank "
        "builds: the process that held the lock has exited and left its lock file behind"
    )
    host = state.host or None
    fact = Fact(
        text="in FileBaton.wait, which returns when the file `lock` in the build folder of the "
        "extension is removed",
        origin=state.stacks[-1].origin,
        rank=rank,
        host=host,
    )
    subject = rank_subject(rank, host, line)
    return [
        make_finding(STALE_BUILD_LOCK, message, subject=subject, evidence=(fact,), confidence=0.8)
    ]


def _is_in(state: RankState, file: str) -> bool:
    """Return whether the newest stack of the rank has a frame in that file."""
    return any(frame.file.endswith(file) for stack in state.stacks[-1:] for frame in stack.frames)
