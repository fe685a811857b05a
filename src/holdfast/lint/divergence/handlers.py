"""Find exceptions that lead a rank past collectives: through ``except`` and ``finally``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    BARRIERS,
    YIELD_MARKER,
    Branch,
    Effect,
    Marker,
    Try,
    final_exit,
    iter_operations,
)
from holdfast.lint.abstract_domain.exceptions import catches
from holdfast.lint.divergence.call_sites import reported_line
from holdfast.lint.divergence.failures import Failure, VaryingTests, iter_failures
from holdfast.lint.divergence.futures import Block, Futures, LoopHead, counts, iter_exits

#: Maximum number of operations of a path to compare one by one.
_MAX_OPERATIONS = 2000
#: A test of an exception's text, and words of exceptions that a single rank can have.
_EXCEPTION_TEXT_TEST = re.compile(r"\bin str\(|\bre\.search\(.*str\(|\bin \w+\.args\b")
_LOCAL_FAULT_WORDS = re.compile(
    r"memory|cuda|nccl|timed? ?out|nan\b|inf\b|connection|disk|space", re.IGNORECASE
)
_MEMORY = re.compile(r"memory|(?:\b|_)oom", re.IGNORECASE)
#: Exceptions that usually end all ranks at once.
_RAISED_BY_ALL = frozenset({"KeyboardInterrupt", "SystemExit"})


class _Handler(msgspec.Struct, frozen=True, eq=False):
    """A handler: the text and location to report, the exceptions it catches, and its block."""

    location: SourceLine
    text: str
    exception: str
    block: Block


def handler_divergences(
    futures: Futures, block: Block, at: int, *, in_loop: bool
) -> Iterator[Divergence]:
    """Yield the divergences by the handlers of the ``try`` at this index."""
    effect: Try = block.path[at]
    if effect.fails_alike:
        return
    varying = VaryingTests.UNKNOWN if in_loop else VaryingTests.IN_LOOPS
    for location, exception, handled in effect.handlers:
        handler = _Handler(
            location, f"except {exception}".strip(), exception, block.guarded(handled, at)
        )
        if next(iter_operations(handled), None) is None:
            yield from _skipped_by_handler(futures, block, at, handler, varying)
        else:
            yield from _entered_by_handler(handler)
    end = final_exit(effect.final_body)
    if end is not None and end.keyword != "raise":
        swallowing = _Handler(end.location, "finally", "", block.guarded((), at))
        yield from _skipped_by_handler(futures, block, at, swallowing, varying)


def _entered_by_handler(handler: _Handler) -> Iterator[Divergence]:
    """Yield a collective in a handler, unless all ranks get there."""
    handled = handler.block.path
    end = final_exit(handled)
    raised_on = end is not None and end.keyword == "raise"
    if _selects_by_exception_text(handled) or (raised_on and handler.exception in _RAISED_BY_ALL):
        return
    op, chain = next(iter_operations(handled))
    reported = reported_line(chain, handled)
    yield Divergence("except", reported, handler.location, handler.text, (), op, chain)


def _skipped_by_handler(
    futures: Futures, block: Block, at: int, handler: _Handler, varying: VaryingTests
) -> Iterator[Divergence]:
    """Yield the first exception that leads past collectives through a handler."""
    body = block.guarded(block.path[at].body, at)
    own = [op for op, _ in islice(iter_operations(body.path), _MAX_OPERATIONS)]
    for failure in itertools.chain(_memory_failures(body, handler), iter_failures(body, varying)):
        if not catches(handler.exception, failure.exception) or _meets(futures, handler, failure):
            continue
        skipped, depth = next(
            ((op, depth) for op, depth in failure.goal.operations() if counts(op)), (None, 0)
        )
        if skipped is None:
            continue
        calls = failure.call_chain
        reported = Divergence(
            "swallowed", calls[0], handler.location, handler.text, (), skipped, calls
        )
        if depth > block.depth or any(op is skipped for op in own):
            yield replace(reported, location=calls[min(depth - block.depth, len(calls) - 1)])
            return
        for end, goal, _ in iter_exits(handler.block):
            if not futures.can_meet(goal, failure.goal):
                yield replace(reported, kind="exit", location=end.location, detail=end.keyword)
                return


def _meets(futures: Futures, handler: _Handler, failure: Failure) -> bool:
    """Return True if a rank that raised meets the others again, perhaps by a second try."""
    handled = handler.block.point(0)
    if futures.can_meet(handled, failure.goal):
        return True
    head = handler.block.targets.next
    if not isinstance(head, LoopHead) or handled.future(futures) != head.future(futures):
        return False
    is_counted = head.loop.text.startswith("for")
    if is_counted and futures.reaches(failure.goal.future(futures), head.future(futures)):
        return False  # the iteration is lost
    return futures.can_meet(head.iteration().point(0), failure.goal)


def _memory_failures(body: Block, handler: _Handler) -> Iterator[Failure]:
    """Yield the failure of a block in front of its collectives, if the handler is for memory."""
    if "OutOfMemory" not in handler.exception and not (
        catches(handler.exception, "RuntimeError") and _tests_for_memory(handler.block.path)
    ):
        return
    calls = next((calls for _, calls in iter_operations(body.path)), None)
    if calls is None or len(calls) > 1:
        at_fault = calls[0] if calls is not None else handler.location
        yield Failure("OutOfMemoryError", (at_fault, handler.location), body.point(0))


def _tests_for_memory(handled: Sequence[Effect]) -> bool:
    return any(isinstance(effect, Branch) and _MEMORY.search(effect.text) for effect in handled)


def finally_divergences(block: Try) -> Iterator[Divergence]:
    """Yield a collective in ``finally``: a rank that raised enters it ahead of the others."""
    waits = any(True for _ in islice(iter_operations(block.body), 1))
    if not waits and not any(
        isinstance(statement, Marker) and statement.name == YIELD_MARKER for statement in block.body
    ):
        return
    for op, chain in islice(iter_operations(block.final_body), _MAX_OPERATIONS):
        # a barrier there is usually part of the teardown
        if op.kind not in ("send", "recv") and op.name not in BARRIERS:
            yield Divergence(
                "except",
                reported_line(chain, block.final_body),
                block.location,
                "finally",
                (),
                op,
                chain,
            )
            return


def _selects_by_exception_text(handled: Sequence[Effect]) -> bool:
    """Return True if a handler selects by text, reraises others, and all ranks get this one."""
    effects = [effect for effect in handled if not isinstance(effect, Marker)]
    branch = effects[0] if effects else None
    if (
        not isinstance(branch, Branch)
        or not _EXCEPTION_TEXT_TEST.search(branch.text)
        or _LOCAL_FAULT_WORDS.search(branch.text)
    ):
        return False
    sides = (branch.branch_body(side) for side in (branch.yes, branch.no))
    ends = [final_exit((*side, *effects[1:])) for side in sides]
    return any(end is not None and end.keyword == "raise" for end in ends)
