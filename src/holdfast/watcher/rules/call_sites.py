"""What the source around calls shows: a rank-dependent guard, a loop, a swallowed exception.

The line of a call comes first, then the line that called its function (as recorded, else any call
of it in the same file), then the callers of that one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from holdfast.core.rank_table import RecordedCall, SourceLine
from holdfast.watcher.source_context import EnclosingLoop, Guard, SourceContext

#: The source around every line that a rule may need.
SourceContexts = Mapping[SourceLine, SourceContext]
#: The header of a loop that a rank has left, and the loop.
LeftLoop = tuple[SourceLine, EnclosingLoop]
MAX_CALLER_LEVELS = 2
#: Loops that count, and those with the same number of iterations on all ranks.
_COUNTS = re.compile(r"for \w+ in (range|trange|count)\(")
_COUNTS_TO_NUMBER = re.compile(r"for \w+ in t?range\([\d_, ]+\)")


def iterate_callers(
    call: RecordedCall, source: SourceContexts
) -> Iterator[tuple[int, SourceLine, SourceContext]]:
    """Yield the line of the call and its callers, nearest first, with level and context."""
    lines = [call.site] if call.site is not None else []
    for level in range(MAX_CALLER_LEVELS + 1):
        known = [(line, source[line]) for line in lines if line in source]
        for line, context in known:
            yield level, line, context
        recorded = [call.caller] if level == 0 and call.caller is not None else []
        lines = recorded or [caller for _, context in known for caller in context.callers]


def own_guard(line: SourceLine | None, source: SourceContexts) -> Guard | None:
    """Return the nearest rank-dependent guard of the line within its own function."""
    context = source.get(line) if line is not None else None
    guards = context.guards if context else ()
    return next((guard for guard in reversed(guards) if guard.rank_dependent), None)


def rank_guard(
    call: RecordedCall, other: RecordedCall | None, source: SourceContexts
) -> tuple[Guard, SourceLine] | None:
    """Return the nearest rank-dependent guard of the call, and the line that it guards.

    A guard that also lets the ``other`` call through does not distinguish them and is skipped.
    """
    around_other = iterate_callers(other, source) if other else ()
    shared = {(line.file, guard) for _, line, context in around_other for guard in context.guards}
    for _, line, _ in iterate_callers(call, source):
        guard = own_guard(line, source)
        if guard is not None and (line.file, guard) not in shared:
            return guard, line
    return None


def early_exit(call: RecordedCall, source: SourceContexts) -> tuple[SourceLine, str] | None:
    """Return the nearest test that leaves the function or loop before the call, with its line.

    It lets a rank leave out the call. Tests of a period (``step % 10``) agree on all ranks.
    """
    for level, line, context in iterate_callers(call, source):
        if level > 1:
            break
        for guard in reversed(context.guards):
            if guard.branch == "after" and "%" not in guard.text:
                return replace(line, line=guard.line), guard.text
    return None


def own_branch(
    call: RecordedCall, other: RecordedCall, source: SourceContexts
) -> tuple[SourceLine, str] | None:
    """Return the nearest test around the call, but not around the ``other`` one, with its line."""
    around_other = iterate_callers(other, source)
    shared = {(line.file, guard) for _, line, context in around_other for guard in context.guards}
    for _, line, context in iterate_callers(call, source):
        for guard in reversed(context.guards):
            is_around = guard.branch in ("body", "orelse") and "__name__" not in guard.text
            if is_around and (line.file, guard) not in shared:
                return replace(line, line=guard.line), guard.text
    return None


def swallowed_call(
    usual: RecordedCall, odd: RecordedCall, source: SourceContexts
) -> SourceLine | None:
    """Return the ``except`` by which a rank in ``odd`` went on without the ``usual`` call.

    ``odd`` follows the ``usual`` call in a function that leads to both, and no test that is not
    around both lets a rank leave that call out.
    """
    around_odd = list(iterate_callers(odd, source))
    shared = {(line.file, guard) for _, line, context in around_odd for guard in context.guards}
    handler: SourceLine | None = None
    for _, line, context in iterate_callers(usual, source):
        tests = (guard for guard in context.guards if guard.branch != "raise")
        if any((line.file, guard) not in shared for guard in tests):
            return None
        if handler is None and context.swallowed_at is not None:
            handler = SourceLine(line.file, context.swallowed_at, context.function)
        for _, odd_line, odd_context in around_odd:
            if (odd_line.file, odd_context.begin) == (line.file, context.begin):
                return handler if odd_line.line > line.line else None
    return None


def is_after_loop_of(odd: RecordedCall, usual: RecordedCall, source: SourceContexts) -> bool:
    """Return whether ``odd`` follows a loop around ``usual``, in a function that leads to both.

    The loop may be in that function, or in a function between it and ``usual``.
    """
    loop_levels: set[int] = set()  # caller levels of ``usual`` that are inside a loop
    for level, line, around_usual in iterate_callers(usual, source):
        is_loop_below = any(inner < level for inner in loop_levels)
        if around_usual.loops:
            loop_levels.add(level)
        for _, odd_line, around_odd in iterate_callers(odd, source):
            if line.file != odd_line.file or around_usual.begin != around_odd.begin:
                continue
            if any(loop.last < odd_line.line for loop in around_usual.loops) or (
                is_loop_below and line.line < odd_line.line
            ):
                return True
    return False


def left_loop_line(
    usual: RecordedCall | None, odd: RecordedCall | None, source: SourceContexts
) -> SourceLine | None:
    """Return the line that let a rank leave the loop around ``usual`` before ``odd``.

    ``odd`` is None if the rank has ended.
    """
    after = {
        (line.file, context.begin): line.line
        for _, line, context in (iterate_callers(odd, source) if odd is not None else ())
    }
    left: list[LeftLoop] = []
    levels: set[int] = set()
    for level, line, context in iterate_callers(usual, source) if usual is not None else ():
        if level in levels:  # several callers are possible
            break
        levels.add(level)
        end = after.get((line.file, context.begin))
        left += [
            (SourceLine(line.file, loop.first, context.function), loop)
            for loop in reversed(context.loops)
            if end is None or loop.last < end
        ]
        if end is not None:
            break
    return exit_line(left)


def exit_line(left: Sequence[LeftLoop]) -> SourceLine | None:
    """Return the line at which one of these loops was left, from the innermost outwards.

    The outermost loop with a single ``break`` or ``return`` was left there; otherwise the
    iterations of the innermost one ended that does not only count, or of the outermost one that
    counts to a variable (``for epoch in range(begin, end)``).
    """
    for line, loop in reversed(left):
        if len(loop.exits) == 1:
            return replace(line, line=loop.exits[0])
    iterates = [line for line, loop in left if not _COUNTS.match(loop.header)]
    counts = [line for line, loop in reversed(left) if not _COUNTS_TO_NUMBER.match(loop.header)]
    return next(iter((*iterates, *counts, *(line for line, _ in left))), None)


def iterating_loop_line(line: SourceLine | None, source: SourceContexts) -> SourceLine | None:
    """Return the innermost loop around the line that does more than count; None without one."""
    context = source.get(line) if line is not None else None
    for loop in reversed(context.loops if context is not None else ()):
        if line is not None and not _COUNTS.match(loop.header):
            return replace(line, line=loop.first)
    return None


def data_loop_line(call: RecordedCall, source: SourceContexts) -> SourceLine | None:
    """Return the loop that produces the data of a library's training loop; None unless it is one.

    The file of the call has one ``__iter__`` that yields in a loop.
    """
    context = source.get(call.site) if call.site is not None else None
    loops = context.data_loops if context is not None else ()
    return loops[0] if len(loops) == 1 else None


def exception_swallowed_in_loop(
    call: RecordedCall | None, source: SourceContexts
) -> SourceLine | None:
    """Return the line that swallows exceptions in a loop around the call; None without one."""
    for _, line, context in iterate_callers(call, source) if call is not None else ():
        for loop in reversed(context.loops):
            if loop.swallows is not None:
                return SourceLine(line.file, loop.swallows, context.function)
    return None
