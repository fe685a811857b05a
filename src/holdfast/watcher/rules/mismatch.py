"""Explains why ranks of one group made different calls, from the source around the two calls.

``if rank == 0:`` around the odd call, a loop that the odd rank has left, an exception swallowed
inside that loop: the communicator sees the same disagreement, but each is another bug with another
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.causes.sync.collective_mismatch import COLLECTIVE_MISMATCH
from holdfast.causes.sync.mismatched_dtype import MISMATCHED_DTYPE
from holdfast.causes.sync.mismatched_operation import MISMATCHED_OPERATION
from holdfast.causes.sync.mismatched_shape import MISMATCHED_SHAPE
from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.causes.sync.rank_skips_collective import RANK_SKIPS_COLLECTIVE
from holdfast.causes.sync.uneven_inputs import UNEVEN_INPUTS
from holdfast.core.findings import Cause, Fact, Finding, Subject, make_finding
from holdfast.core.rank_sets import describe_ranks
from holdfast.core.rank_table import RankState, RecordedCall, SourceLine
from holdfast.core.text import pluralize
from holdfast.host.processes.user_code import is_user_file
from holdfast.watcher.rules.call_divergence import ROOTED, CallDivergence
from holdfast.watcher.rules.call_sites import (
    LeftLoop,
    SourceContexts,
    data_loop_line,
    early_exit,
    exception_swallowed_in_loop,
    exit_line,
    is_after_loop_of,
    left_loop_line,
    own_branch,
    rank_guard,
    swallowed_call,
)
from holdfast.watcher.rules.stack_divergence import (
    frames_in_call,
    guard_in_stack,
    left_loops,
    model_call,
    swallowed_below,
)
from holdfast.watcher.rules.subjects import rank_subject
from holdfast.watcher.source_context import Guard

_CAUSE_OF_KIND = {
    "operation": MISMATCHED_OPERATION,
    "dtype": MISMATCHED_DTYPE,
    "shape": MISMATCHED_SHAPE,
    "size": MISMATCHED_SHAPE,
    "arguments": COLLECTIVE_MISMATCH,
    "line": COLLECTIVE_MISMATCH,
}


class _Sides(NamedTuple):
    """The ranks that made the odd call, and one call of either side.

    The frames are those of a rank that is in that call, innermost first; empty if unknown.
    ``ahead``: the odd ranks have finished more steps than the others.
    """

    ranks: tuple[int, ...]
    odd: RecordedCall
    usual: RecordedCall
    odd_frames: tuple[SourceLine, ...]
    usual_frames: tuple[SourceLine, ...]
    ahead: bool

    @property
    def who(self) -> str:
        return describe_ranks(self.ranks)

    @property
    def who_is(self) -> str:
        return f"{self.who} {'is' if len(self.ranks) == 1 else 'are'}"

    @property
    def who_makes(self) -> str:
        return f"{self.who} {'makes' if len(self.ranks) == 1 else 'make'}"


class _Explanation(NamedTuple):
    cause: Cause
    line: SourceLine | None
    message: str
    confidence: float


def explain_mismatch(
    divergence: CallDivergence, ranks: Mapping[int, RankState], source: SourceContexts
) -> Finding:
    """Return the finding about ranks whose calls diverged."""
    sides = _sides(divergence, ranks, source)
    cause, line, message, confidence = _explain(divergence, sides, source)
    if divergence.tie and confidence < 0.8:
        message += " (a tie: both calls were made by equally many ranks)"
    return make_finding(
        cause,
        message,
        subject=_subject(sides.ranks[0], ranks, line),
        evidence=_evidence(divergence, sides),
        confidence=confidence,
    )


def _subject(rank: int, ranks: Mapping[int, RankState], line: SourceLine | None) -> Subject:
    return rank_subject(rank, ranks[rank].host if rank in ranks else None, line)


def explain_line_divergence(
    divergence: CallDivergence, ranks: Mapping[int, RankState], source: SourceContexts
) -> Finding | None:
    """Explain ranks that made one collective from different lines, if the source shows why."""
    sides = _sides(divergence, ranks, source)
    is_explained = divergence.skipped is not None or _guard(sides, source) is not None
    if not is_explained or (divergence.tie and len(sides.ranks) > 1):
        return None
    return explain_mismatch(divergence, ranks, source)


def _sides(
    divergence: CallDivergence, ranks: Mapping[int, RankState], source: SourceContexts
) -> _Sides:
    """Return the odd side.

    On a tie it is the side whose call has a rank-dependent guard or follows the loop of the other.
    """
    sides = _side(divergence.minority, divergence.odd, divergence.usual, ranks)
    # Half of the ranks make a new call, which a test before it lets the others leave out.
    is_left_out = (
        2 * len(sides.ranks) == len(ranks)
        and not divergence.known
        and early_exit(divergence.odd, source) is not None
    )
    if not (divergence.tie or is_left_out) or _is_explained(sides, source):
        return sides
    others = tuple(
        rank
        for rank, state in sorted(ranks.items())
        if rank not in divergence.minority
        and any(call.group == divergence.group for call in (*state.recent, *state.pending))
    )
    swapped = _side(others, divergence.usual, divergence.odd, ranks)
    return swapped if is_left_out or _is_explained(swapped, source) else sides


def _side(
    odd_ranks: tuple[int, ...],
    odd: RecordedCall,
    usual: RecordedCall,
    ranks: Mapping[int, RankState],
) -> _Sides:
    def first(call: RecordedCall, *, is_odd: bool) -> tuple[SourceLine, ...]:
        found = (
            frames_in_call(state, call)
            for rank, state in sorted(ranks.items())
            if (rank in odd_ranks) is is_odd
        )
        return next(filter(None, found), ())

    own = [ranks[rank].step for rank in odd_ranks if rank in ranks]
    others = [state.step for rank, state in ranks.items() if rank not in odd_ranks]
    steps = [step for step in (*own, *others) if step is not None]
    ahead = len(steps) == len(ranks) and min(steps[: len(own)]) > max(steps[len(own) :])
    return _Sides(odd_ranks, odd, usual, first(odd, is_odd=True), first(usual, is_odd=False), ahead)


def _is_explained(sides: _Sides, source: SourceContexts) -> bool:
    return (
        _guard(sides, source) is not None
        or _has_left_loop(sides, source)
        or swallowed_call(sides.usual, sides.odd, source) is not None
    )


def _guard(sides: _Sides, source: SourceContexts) -> tuple[Guard, SourceLine] | None:
    """Return the rank-dependent guard of the odd call only, and the line that it guards."""
    return rank_guard(sides.odd, sides.usual, source) or guard_in_stack(
        sides.odd_frames, sides.usual_frames, source
    )


def _has_left_loop(sides: _Sides, source: SourceContexts) -> bool:
    """Return whether the odd ranks left a loop that the others are still in."""
    in_stacks = left_loops(sides.odd_frames, sides.usual_frames, source)
    return bool(in_stacks) or is_after_loop_of(sides.odd, sides.usual, source)


def _explain(
    divergence: CallDivergence,
    sides: _Sides,
    source: SourceContexts,
) -> _Explanation:
    odd, usual, who = sides.odd, sides.usual, sides.who
    guarded = _guard(sides, source)
    if guarded is not None:
        guard, guarded_line = guarded
        through = f", called at {guarded_line.short}," if guarded_line != odd.site else ""
        enters = "enters" if len(sides.ranks) == 1 else "enter"
        text = (
            f"only {who} {enters} {_describe(odd)}{through} under {guard.text!r}; the "
            f"others are in {_describe(usual)}"
        )
        return _Explanation(RANK_GUARDED_COLLECTIVE, guarded_line, text, 0.95)
    if divergence.skipped is not None:
        skipped = divergence.skipped
        line, why = _left_out_at(skipped, source)
        text = f"{who} skipped {_describe(skipped)}{why}: one call behind since then"
        return _Explanation(RANK_SKIPS_COLLECTIVE, line, text, 0.85)
    left = _explain_left_loop(divergence, sides, source)
    left = left or _explain_handler(divergence, sides, source)
    if left is not None:
        return left
    if divergence.kind == "dtype" and divergence.known:
        text = (
            f"{sides.who_is} elsewhere in the program than the others: in {_describe(odd)} with "
            f"{odd.dtype}, the others in {_describe(usual)} with {usual.dtype}; ranks made both "
            "calls before"
        )
        return _Explanation(COLLECTIVE_MISMATCH, odd.site, text, 0.7)
    early = pluralize(divergence.early, "call") if sides.ranks == divergence.minority else ""
    if divergence.early and early and sides.ahead:
        text = (
            f"{who} finished a step without {_describe(usual)}, in which the others are, and "
            f"entered {_describe(odd)} {early} early"
        )
        return _Explanation(RANK_SKIPS_COLLECTIVE, usual.site, text, 0.8)
    return _explain_difference(divergence, sides, source)


def _explain_difference(
    divergence: CallDivergence, sides: _Sides, source: SourceContexts
) -> _Explanation:
    """Explain calls that differ by the test that leads to one of them, else by the calls."""
    odd, usual = sides.odd, sides.usual
    exits = early_exit(usual, source) if sides.ranks != divergence.minority else None
    if exits is not None:
        exit_line, test = exits
        text = (
            f"{sides.who} left out {_describe(usual)}, in which the others are, after "
            f"{test!r}{_at(exit_line)}; {sides.who_makes} {_describe(odd)}"
        )
        return _Explanation(RANK_SKIPS_COLLECTIVE, exit_line, text, 0.8)
    text = f"{sides.who_makes} {_describe(odd)}: {_difference(divergence.kind, odd, usual)}"
    is_another_call = not divergence.known and not _is_same_call(odd, usual)
    branch = (
        own_branch(odd, usual, source)
        if divergence.kind == "operation" or is_another_call
        else None
    )
    line = odd.site
    if branch is not None:
        line, test = branch
        text = f"{text}, under {test!r}{_at(line)}"
    called = _called_with(divergence.kind, sides, source)
    if called is not None:
        line = called
        text += f", in the model that is called{_at(line)}: the ranks pass it different sizes"
    confidence = 0.6 if divergence.tie else 0.9
    return _Explanation(_CAUSE_OF_KIND[divergence.kind], line, text, confidence)


def _is_same_call(one: RecordedCall | None, other: RecordedCall) -> bool:
    return one is not None and (one.site, one.caller) == (other.site, other.caller)


def _called_with(kind: str, sides: _Sides, source: SourceContexts) -> SourceLine | None:
    """Return the line that calls the model, if the sizes of its activations differ between ranks.

    A library makes such a call inside of the forward pass. Parameters of different sizes would also
    change the last dimension.
    """
    odd, usual = sides.odd, sides.usual
    one, other = odd.shape, usual.shape
    is_activation = len(one) == len(other) > 1 and one[-1] == other[-1]
    context = source.get(odd.site) if odd.site is not None else None
    if (
        kind not in ("shape", "size")
        or not is_activation
        or not _is_same_call(odd, usual)
        or context is None
        or odd.name.rpartition("_")[2] in context.text
    ):
        return None
    return model_call(odd.site, sides.odd_frames or sides.usual_frames)


def _left_out_at(call: RecordedCall, source: SourceContexts) -> tuple[SourceLine | None, str]:
    """Return the line that let a rank leave out the call, and a text about it; else its own."""
    found = early_exit(call, source)
    if found is None:
        return call.site, ""
    line, test = found
    return line, f" after {test!r}{_at(line)}"


def _explain_left_loop(
    divergence: CallDivergence, sides: _Sides, source: SourceContexts
) -> _Explanation | None:
    """Explain ranks that left a loop which the others are still in, by the source or the stacks."""
    odd, usual, who = sides.odd, sides.usual, sides.who
    if _has_left_loop(sides, source):
        loops = left_loops(sides.odd_frames, sides.usual_frames, source)
        handler = exception_swallowed_in_loop(usual, source)
        if handler is None and loops:
            handler = swallowed_below(loops[-1][0], sides.usual_frames, source)
        if handler is not None:
            text = (
                f"{who} made fewer calls of {_describe(usual)} than the others: an exception is "
                f"swallowed at {handler.short}"
            )
            return _Explanation(RANK_SKIPS_COLLECTIVE, usual.site, text, 0.8)
        exits = early_exit(usual, source) if _is_repeated(usual, source) else None
        if exits is not None:  # an iteration without the call is more likely than a shorter loop
            exit_line, test = exits
            text = (
                f"{who} made fewer calls of {_describe(usual)} than the others, which are in it: "
                f"it is left out after {test!r}{_at(exit_line)}"
            )
            return _Explanation(RANK_SKIPS_COLLECTIVE, exit_line, text, 0.8)
        line, shown = _line_of_exit(usual, odd, loops, source)
        text = (
            f"{who} left the loop first{_at(shown)} and entered {_describe(odd)}; the others are "
            f"still in {_describe(usual)}"
        )
        return _Explanation(UNEVEN_INPUTS, line or odd.site, text, 0.9)
    loops = left_loops(sides.usual_frames, sides.odd_frames, source)
    if not loops:
        return None
    if sides.ranks == divergence.minority and _has_begun_again(loops, odd, divergence.before):
        return _explain_next_turn(sides, source)
    line, shown = _line_of_exit(odd, usual, loops, source)
    text = (
        f"{sides.who_is} still in the loop{_at(shown)}, in {_describe(odd)}; the others left it "
        f"first and are in {_describe(usual)}"
    )
    return _Explanation(UNEVEN_INPUTS, line or odd.site, text, 0.85)


def _explain_handler(
    divergence: CallDivergence, sides: _Sides, source: SourceContexts
) -> _Explanation | None:
    """Explain ranks that left out a call in a ``try`` block whose handler lets them continue."""
    odd, usual = sides.odd, sides.usual
    handler = swallowed_call(usual, odd, source)
    if handler is None or _is_same_call(divergence.before, usual):
        return None
    text = (
        f"{sides.who} left out {_describe(usual)}, in which the others are: the exception handler "
        f"at {handler.short} lets a rank continue without it; {sides.who_is} in {_describe(odd)}"
    )
    return _Explanation(RANK_SKIPS_COLLECTIVE, handler, text, 0.8)


def _is_repeated(call: RecordedCall, source: SourceContexts) -> bool:
    """Return whether the loop around the call is in a function that another loop calls.

    Such a loop, for example over layers, has the same iterations on all ranks.
    """
    around = source.get(call.site) if call.site is not None else None
    caller = source.get(call.caller) if call.caller is not None else None
    return bool(around and around.loops and caller and caller.loops)


def _has_begun_again(
    loops: Sequence[LeftLoop], call: RecordedCall, before: RecordedCall | None
) -> bool:
    """Return whether the call is the first one of a rank in these loops since it was elsewhere."""

    def is_inside(each: RecordedCall) -> bool:
        return any(
            line.file == header.file and loop.first <= line.line <= loop.last
            for line in (each.site, each.caller)
            if line is not None
            for header, loop in loops
        )

    return before is not None and is_inside(call) and not is_inside(before)


def _explain_next_turn(sides: _Sides, source: SourceContexts) -> _Explanation:
    """Explain ranks in the next iteration of a loop, while the others are in a later call of it."""
    odd, usual, who = sides.odd, sides.usual, sides.who
    loops = left_loops(sides.odd_frames, sides.usual_frames, source, is_next_turn=True)
    turn = f"is in {_describe(odd)} of the next iteration"
    if len(sides.ranks) > 1:
        turn = turn.replace("is", "are", 1)
    if loops:
        line, shown = _line_of_exit(usual, odd, loops, source)
        text = (
            f"{who} left the loop first{_at(shown)} and {turn}; the others are still in "
            f"{_describe(usual)}"
        )
        return _Explanation(UNEVEN_INPUTS, line or usual.site, text, 0.85)
    line, why = _left_out_at(usual, source)
    text = f"{who} skipped {_describe(usual)}{why}, in which the others are, and {turn}"
    return _Explanation(RANK_SKIPS_COLLECTIVE, line, text, 0.85)


def _line_of_exit(
    inside: RecordedCall,
    after: RecordedCall,
    loops: Sequence[LeftLoop],
    source: SourceContexts,
) -> tuple[SourceLine | None, SourceLine | None]:
    """Return the script's line that ended the loop around ``inside``, if known, and one to show.

    ``loops`` are those in the stacks. That of a library's loop is where the script yields the data.
    """
    own = [each for each in loops if is_user_file(each[0].file)]
    line = exit_line(own) if loops else left_loop_line(inside, after, source)
    line = line or data_loop_line(inside, source)
    return line, line or (loops[-1][0] if loops else None)


def _difference(kind: str, odd: RecordedCall, usual: RecordedCall) -> str:
    if kind == "arguments":
        return f"{_arguments(odd)} where the others pass {_arguments(usual)}"
    if kind == "dtype":
        return f"{odd.dtype} where the others send {usual.dtype}"
    if kind in ("shape", "size"):
        return f"{_size(odd)} where the others send {_size(usual)}"
    return f"the others make {_describe(usual)}"


def _arguments(call: RecordedCall) -> str:
    root = f"root {call.tag}" if call.name in ROOTED else ""
    return ", ".join(part for part in (call.reduce, root) if part) or "nothing more"


def _evidence(divergence: CallDivergence, sides: _Sides) -> tuple[Fact, ...]:
    which = f"call #{divergence.sequence} of group {divergence.group!r}"
    odd, usual, rank = sides.odd, sides.usual, sides.ranks[0]
    return (
        Fact(
            text=f"{which}: {_describe(odd)}, {odd.dtype} {list(odd.shape)}",
            origin=f"trace of rank {rank}",
            rank=rank,
            time=odd.entered,
        ),
        Fact(
            text=f"{which}: {_describe(usual)}, {usual.dtype} {list(usual.shape)}",
            origin="traces of the other ranks",
            time=usual.entered,
        ),
    )


def _describe(call: RecordedCall) -> str:
    return f"{call.name}{_at(call.site)}"


def _at(line: SourceLine | None) -> str:
    return f" at {line.short}" if line else ""


def _size(call: RecordedCall) -> str:
    return f"{call.elements} elements {list(call.shape)}"
