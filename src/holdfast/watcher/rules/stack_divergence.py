"""Compares the stacks of two ranks in different calls: one may have left a loop of the other.

The innermost function that both are in, at different lines, shows it. That function may belong to a
library, such as a trainer, for whose calls the traces have one line of the user's script.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.rank_table import RankState, RecordedCall, SourceLine
from holdfast.host.processes.user_code import is_library_frame
from holdfast.watcher.rules.call_sites import SourceContexts


def frames_in_call(state: RankState, call: RecordedCall) -> tuple[SourceLine, ...]:
    """Return the frames of the rank, innermost first, if it is in ``call`` or failed in it.

    They are those of its newest stack, else of the exception that ended it.
    """
    newest = max((*state.recent, *state.pending), key=lambda each: each.entered, default=None)
    if newest is None or (newest.group, newest.sequence) != (call.group, call.sequence):
        return ()
    if state.stacks:
        return state.stacks[-1].frames
    return state.raised.frames if state.raised is not None else ()


def left_loop_at(
    left: Sequence[SourceLine], still: Sequence[SourceLine], source: SourceContexts
) -> SourceLine | None:
    """Return the line in the common function at which ``still`` is, in a loop that ``left`` left.

    The loop is in that function, or in one that it calls there. After it, ``left`` may be in the
    next iteration of an outer loop. Both stacks are innermost first.
    """
    outwards = list(zip(reversed(left), reversed(still), strict=False))
    depth = next((at for at, (one, other) in enumerate(outwards) if one != other), None)
    if depth is None:
        return None
    after, inside = outwards[depth]
    if (after.file, after.function) != (inside.file, inside.function) or inside not in source:
        return None
    loops = source[inside].loops
    left_here = any(not loop.first <= after.line <= loop.last for loop in loops)
    inner = still[: len(still) - depth - 1]
    left_below = after.line > inside.line and any(
        source[frame].loops for frame in inner if frame in source
    )
    return inside if left_here or left_below else None


def compared_frames(states: Sequence[RankState]) -> set[SourceLine]:
    """Return the frames whose source :func:`left_loop_at` needs: not those of torch or Python."""
    stacks = {
        frames
        for state in states
        for frames in (
            state.stacks[-1].frames if state.stacks and state.pending else (),
            state.raised.frames if state.raised is not None else (),
        )
    }
    return {frame for frames in stacks for frame in frames if not is_library_frame(frame.file)}
