"""Compares the stacks of two ranks in different calls.

One may have left a loop of the other: the innermost function that both are in, at different lines,
shows it. That function may belong to a library, such as a trainer, for whose calls the traces have
one line of the user's script. Or one may be in a branch that depends on the rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.core.rank_table import RankState, RecordedCall, SourceLine
from holdfast.host.processes.user_code import is_library_frame, is_user_file
from holdfast.watcher.rules.call_sites import LeftLoop, SourceContexts, own_guard
from holdfast.watcher.source_context import Guard

_MODULE = "/torch/nn/modules/module.py"


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


def left_loops(
    left: Sequence[SourceLine],
    still: Sequence[SourceLine],
    source: SourceContexts,
    *,
    is_next_turn: bool = False,
) -> list[LeftLoop]:
    """Return the loops that ``still`` is in and ``left`` has left, the innermost first.

    They are in the innermost common function, or in those that ``still`` called there. Both stacks
    are innermost first. ``is_next_turn``: ``left`` is in the next iteration of a loop around both.
    """
    outwards = list(zip(reversed(left), reversed(still), strict=False))
    depth = next((at for at, (one, other) in enumerate(outwards) if one != other), None)
    if depth is None:
        return []
    after, inside = outwards[depth]
    if (after.file, after.function) != (inside.file, inside.function) or inside not in source:
        return []
    here = [
        (SourceLine(inside.file, loop.first, inside.function), loop)
        for loop in source[inside].loops
        if not loop.first <= after.line <= loop.last
    ]
    is_later = bool(here) or after.line > inside.line or is_next_turn
    called = still[: len(still) - depth - 1] if is_later else ()
    return [*here, *_loops_over_data(called, source)][::-1]


def guard_in_stack(
    odd: Sequence[SourceLine], usual: Sequence[SourceLine], source: SourceContexts
) -> tuple[Guard, SourceLine] | None:
    """Return the nearest rank-dependent guard around the script's frames of ``odd`` only."""
    shared = {
        (frame.file, guard) for frame in usual if frame in source for guard in source[frame].guards
    }
    for frame in odd:
        guard = own_guard(frame, source) if is_user_file(frame.file) else None
        if guard is not None and (frame.file, guard) not in shared:
            return guard, frame
    return None


def model_call(site: SourceLine | None, frames: Sequence[SourceLine]) -> SourceLine | None:
    """Return the line of the script that calls the outermost module around ``site``.

    ``frames`` are those of a stack, innermost first; None if ``site`` is in no forward pass.
    """
    modules = [at for at, frame in enumerate(frames) if frame.file.endswith(_MODULE)]
    if not modules or site not in frames[: modules[-1]]:
        return None
    return next((frame for frame in frames[modules[-1] :] if is_user_file(frame.file)), None)


def swallowed_below(
    header: SourceLine, frames: Sequence[SourceLine], source: SourceContexts
) -> SourceLine | None:
    """Return the line that swallows exceptions in a function called in the loop at ``header``.

    Only in the script: a library's handler is no mistake.
    """
    outwards = [(frame.file, frame.function) for frame in reversed(frames)]
    loop = (header.file, header.function)
    inner = frames[: len(frames) - outwards.index(loop) - 1] if loop in outwards else ()
    for frame in inner:
        line = source[frame].swallowed_at if frame in source and is_user_file(frame.file) else None
        if line is not None:
            return SourceLine(frame.file, line, frame.function)
    return None


def compared_frames(states: Sequence[RankState]) -> set[SourceLine]:
    """Return the frames whose source :func:`left_loops` needs: not those of torch or Python."""
    stacks = {
        frames
        for state in states
        for frames in (
            state.stacks[-1].frames if state.stacks and state.pending else (),
            state.raised.frames if state.raised is not None else (),
        )
    }
    return {frame for frames in stacks for frame in frames if not is_library_frame(frame.file)}


def _loops_over_data(frames: Sequence[SourceLine], source: SourceContexts) -> Iterator[LeftLoop]:
    """Yield the loops in these frames, the outermost first.

    A loop inside a module's forward pass runs over its layers, not over the data, and one in a
    function that calls itself over the members of a collection.
    """
    calls = Counter((frame.file, frame.function) for frame in frames)
    for frame in reversed(frames):
        if frame.file.endswith(_MODULE):
            return
        if frame not in source or calls[frame.file, frame.function] > 1:
            continue
        for loop in source[frame].loops:
            yield SourceLine(frame.file, loop.first, frame.function), loop
