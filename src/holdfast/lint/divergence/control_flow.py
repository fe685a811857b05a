"""Find branches, loops, handlers and early exits whose paths enter different collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.conditions import (
    Conditions,
    conjuncts_of,
    excludes_sharding,
    is_whole_by,
)
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    BARRIERS,
    PROCESS_EXIT,
    SINGLE_JOB,
    UNSHARED_EXIT,
    Branch,
    Effect,
    EffectPath,
    FunctionCall,
    LoopEffect,
    Marker,
    Operation,
    Try,
    collective_sequence,
    final_exit,
    iter_operations,
    unfold_early_exits,
)
from holdfast.lint.abstract_domain.values import TaintKind, is_rank_only, taint_kinds
from holdfast.lint.divergence.call_sites import is_wrapper_call, reported_line
from holdfast.lint.divergence.futures import (
    FUNCTION_TARGETS,
    Block,
    Futures,
    Goal,
    Point,
    counts,
    iter_exits,
)
from holdfast.lint.divergence.group_members import (
    find_differing_groups,
    find_excluded_members,
    is_leaders_collective,
)
from holdfast.lint.divergence.handlers import finally_divergences, handler_divergences
from holdfast.lint.divergence.implications import excluded_conditions
from holdfast.lint.divergence.new_jobs import forms_new_job
from holdfast.lint.divergence.partners import depends_on_unknown, is_retry, unproved_reason
from holdfast.lint.divergence.rank_turns import drop_exclusive_branches, opposite_answers

#: Maximum number of operations of a path to compare one by one, and of calls to enter.
_MAX_OPERATIONS, _MAX_DEPTH = 2000, 6


#: A membership test such as ``if rank in ranks``.
_MEMBERSHIP_TEST = re.compile(r"rank\w*(?:\(\w*\))? (?:not )?in [a-z_]", re.IGNORECASE)
#: A loop that counts its iterations.
_ENUMERATED = re.compile(r"for \(?(\w+), .* in enumerate\([^,]*\)$")


def find_divergences(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield the divergences in a function's own code, without those in the functions it calls."""
    block = Block(unfold_early_exits(path), FUNCTION_TARGETS)
    yield from _PathComparison().divergences(block, in_loop=False)


class _PathComparison:
    """Compares the paths of one function."""

    def __init__(self) -> None:
        self._futures = {answer: Futures(rank_only=answer) for answer in (False, True)}

    def divergences(self, block: Block, *, in_loop: bool) -> Iterator[Divergence]:
        """Yield the divergences of a block."""
        for at, effect in enumerate(block.path):
            match effect:
                case Branch(yes=yes, no=no):
                    yield from self._unsettled(block, at, effect)
                    yield from _excluded_members(effect)
                    for side in (yes, no):
                        inner = block.side(side, at)
                        yield from self.divergences(inner, in_loop=in_loop)
                case LoopEffect(body=body, orelse=after):
                    yield from _loop_divergences(effect)
                    inner = block.loop_body(unfold_early_exits(body), at)
                    yield from self.divergences(inner, in_loop=bool(collective_sequence(body)))
                    last = block.nested(unfold_early_exits(after), at)
                    yield from self.divergences(last, in_loop=in_loop)
                case Try():
                    yield from self._try(block, at, effect, in_loop=in_loop)
                case FunctionCall(callee=callee) if PROCESS_EXIT in callee.tags:
                    yield from self._process_exits(block.called(at))
                case Marker(name="root" | "shape" | "type" | "ranks" | "state", control=control):
                    yield Divergence(
                        effect.name, effect.location, effect.location, effect.detail, control
                    )
                case _:
                    pass

    def _try(self, block: Block, at: int, effect: Try, *, in_loop: bool) -> Iterator[Divergence]:
        yield from handler_divergences(self._futures[False], block, at, in_loop=in_loop)
        yield from finally_divergences(effect)
        guarded = block.guarded(unfold_early_exits(effect.body), at)
        yield from self.divergences(guarded, in_loop=in_loop)
        for _, _, handled in effect.handlers:
            inner = block.guarded(unfold_early_exits(handled), at)
            inner.settled = frozenset()  # not every rank gets here
            yield from self.divergences(inner, in_loop=in_loop)
        last = block.nested(unfold_early_exits(effect.final_body), at)
        last.settled = guarded.settled
        yield from self.divergences(last, in_loop=in_loop)

    def _process_exits(self, called: Block) -> Iterator[Divergence]:
        """Yield the ends of the process in a called function that skip collectives of callers."""
        if called.depth > _MAX_DEPTH:
            return
        for divergence in self.divergences(called, in_loop=False):
            if divergence.detail == PROCESS_EXIT:
                yield divergence

    # ---- branches

    def _unsettled(self, block: Block, at: int, branch: Branch) -> Iterator[Divergence]:
        """Yield a branch's divergences, unless ranks meet although each repeats its answer below.

        For example, all but the first rank enter a barrier, and the first one enters it further
        down: where it finds a file, or behind ``assert rank == 0`` where it creates it.
        """
        answers = opposite_answers(branch)
        if answers is not None and answers[0] in block.settled:
            return
        found = list(self._branch(block, at, branch))
        if answers is not None and any(each.kind != "ranks" for each in found):
            futures = self._futures[True]
            yes, no = (
                block.nested(side, at).point(0).future(futures.assuming(holding))
                for side, holding in zip((branch.yes, branch.no), answers, strict=True)
            )
            if futures.compatible(yes, no):
                block.settled |= set(answers)
                return
        yield from found

    def _branch(self, block: Block, at: int, branch: Branch) -> Iterator[Divergence]:
        if (
            not branch.taint
            or forms_new_job(branch)
            or _selects_file_format(branch)
            or _tests_single_job(branch, block.path[:at])
        ):
            return
        branch = drop_exclusive_branches(branch)
        rank_only = is_rank_only(branch.taint)
        futures = self._futures[rank_only]
        yes, no = (block.nested(side, at).point(0) for side in (branch.yes, branch.no))
        same = collective_sequence(branch.yes, rank_only=rank_only) == collective_sequence(
            branch.no, rank_only=rank_only
        )
        if futures.compatible(yes.future(futures), no.future(futures)):
            group_creation = find_differing_groups(branch) if same and rank_only else None
            if group_creation is not None:
                op, chain = group_creation
                location = reported_line(chain, branch.yes)
                yield _divergence_at("ranks", location, branch, (op, chain))
        elif same:
            yield from self._skipping_exits(branch, yes, no)
        elif self._meets_under(
            excluded_conditions(block.facts, branch), yes, no, rank_only=rank_only
        ):
            return
        else:
            yield from _unmatched_operations(block, at, branch)

    def _skipping_exits(self, branch: Branch, yes: Point, no: Point) -> Iterator[Divergence]:
        """Yield the first exit in a branch that leads past collectives of the other side."""
        rank_only = is_rank_only(branch.taint)
        futures = self._futures[rank_only]
        for side, other in ((yes, no), (no, yes)):
            expected = other.future(futures)
            op = next((op for op, _ in other.operations() if counts(op, rank_only=rank_only)), None)
            for end, goal, conditions in iter_exits(side.block):
                if (
                    op is not None
                    and not futures.compatible(goal.future(futures), expected)
                    and not self._meets_under(conditions, goal, other, rank_only=rank_only)
                ):
                    found = _divergence_at(
                        "exit", end.location, branch, (op, (op.location,)), detail=end.keyword
                    )
                    if not is_retry(found, goal):
                        yield found
                    return

    def _meets_under(
        self, conditions: Conditions, one: Goal, other: Goal, *, rank_only: bool
    ) -> bool:
        """Return True if ranks at these points can meet where the conditions hold."""
        return bool(conditions) and Futures(rank_only=rank_only, assumed=conditions).can_meet(
            one, other
        )


# ---- branches


def _unmatched_operations(block: Block, at: int, branch: Branch) -> Iterator[Divergence]:
    """Yield the divergences of a branch whose sides enter different collectives."""
    rank_only = is_rank_only(branch.taint)
    barrier = any(
        op.name in BARRIERS
        for op, _ in islice(iter_operations(block.path[at + 1 :]), _MAX_OPERATIONS)
    )
    for divergence in _unmatched_side(branch, barrier=barrier, rank_only=rank_only):
        if is_retry(divergence, block.targets.next) or _is_whole(
            divergence.op, block.facts, branch.text
        ):
            continue
        unproved = unproved_reason(divergence, branch) if rank_only else ""
        if unproved:
            yield replace(divergence, unproved=unproved)
        elif divergence.kind == "branch" and is_leaders_collective(
            divergence.op, divergence.sources, block.path[:at]
        ):
            yield replace(divergence, kind="leaders")
        else:
            conditional = rank_only and depends_on_unknown(branch, divergence.op)
            yield replace(divergence, conditional=conditional)


def _is_whole(op: Operation | None, facts: Sequence[tuple[str, bool]], test: str) -> bool:
    """Return True for I/O of a model that may be sharded, where a test says that it is not."""
    return (
        op is not None
        and op.kind == "sharded"
        and op.may_not_wait
        and (
            excludes_sharding(test)
            or any(is_whole_by(text, answer=answer) for text, answer in facts)
        )
    )


def _divergence_at(
    kind: str,
    location: SourceLine,
    branch: Branch,
    operation: tuple[Operation | None, tuple[SourceLine, ...]] = (None, ()),
    *,
    text: str = "",
    detail: str = "",
    barrier: bool = False,
) -> Divergence:
    text = text or branch.text
    op, chain = operation
    return Divergence(
        kind, location, branch.location, text, branch.taint, op, chain, detail, barrier
    )


def _tests_single_job(branch: Branch, before: EffectPath) -> bool:
    """Return True for a test of a function that makes one rank a job of its own."""
    return any(
        isinstance(effect, FunctionCall)
        and SINGLE_JOB in effect.callee.tags
        and f"{effect.name}(" in branch.text
        for effect in before[-2:]
    )


def _selects_file_format(branch: Branch) -> bool:
    """Return True for a test that selects a file format: usually all ranks see the same file."""
    if taint_kinds(branch.taint) != {TaintKind.FILES}:
        return False
    sides = [branch.branch_body(side) or side for side in (branch.yes, branch.no)]
    exits = [final_exit(side) for side in sides]
    refused = [end is not None and end.keyword == "raise" for end in exits]
    return all(
        refuses or next(_relevant_operations(side, rank_only=False), None) is not None
        for side, refuses in zip(sides, refused, strict=True)
    )


def _unmatched_side(branch: Branch, *, barrier: bool, rank_only: bool) -> Iterator[Divergence]:
    """Yield the divergence of a branch where one side enters a collective that the other lacks."""
    yes_exit = final_exit(branch.branch_body(branch.yes))
    no_exit = final_exit(branch.branch_body(branch.no))
    for side, other_side, opposite_exit in (
        (branch.yes, branch.no, no_exit),
        (branch.no, branch.yes, yes_exit),
    ):
        extra = _first_unmatched(side, other_side, rank_only=rank_only)
        if extra is None:
            continue
        op, chain = extra
        if op.kind == "sharded" and taint_kinds(branch.taint) == {TaintKind.FILES}:
            continue  # sharded I/O uses storage that all ranks see
        if (
            op.names_group
            and rank_only
            and branch.rank_test is None
            and _MEMBERSHIP_TEST.search(branch.text)
        ):
            continue  # usually exactly the members of a group that was passed in
        inside = any(
            nested_op is op
            for nested_op, _ in islice(iter_operations(branch.branch_body(side)), _MAX_OPERATIONS)
        )
        text = _negated(branch.text) if side is branch.no else branch.text
        is_wrapper = opposite_exit is not None and opposite_exit.keyword == "return"
        if inside or opposite_exit is None or (is_wrapper and is_wrapper_call(chain, side)):
            yield _divergence_at(
                "branch",
                reported_line(chain, side),
                branch,
                (op, chain),
                barrier=barrier,
                text=text,
            )
        # a rank that raises exits, and the launcher stops the others
        elif opposite_exit.keyword not in ("raise", UNSHARED_EXIT):
            yield _divergence_at(
                "exit", opposite_exit.location, branch, (op, chain), detail=opposite_exit.keyword
            )
        return


def _negated(test: str) -> str:
    """Return the text of the opposite test."""
    keyword, condition = ("if ", test[3:]) if test.startswith("if ") else ("", test)
    return f"{keyword}not ({condition})"


def _excluded_members(branch: Branch) -> Iterator[Divergence]:
    """Yield the divergence of a rank test that excludes members of a group from its collective."""
    collective = find_excluded_members(branch)
    if collective is not None:
        op, chain = collective
        ranks = ", ".join(map(str, op.members[:8]))
        yield _divergence_at("members", chain[0], branch, (op, chain), detail=ranks)


def _first_unmatched(
    side: EffectPath, other_side: EffectPath, *, rank_only: bool
) -> tuple[Operation, tuple[SourceLine, ...]] | None:
    """Return the first operation of one side that the other lacks; None if there is none.

    One that may not wait (the forward of a DDP model without buffers) only if no other one does.
    """
    have = [_operation_key(op) for op, _ in _relevant_operations(other_side, rank_only=rank_only)]
    optional = None
    for op, chain in _relevant_operations(side, rank_only=rank_only):
        if _operation_key(op) in have:
            have.remove(_operation_key(op))
        elif not op.may_not_wait:
            return op, chain
        elif optional is None:
            optional = op, chain
    if optional is not None:
        return optional
    if not have and collective_sequence(side, rank_only=rank_only) != collective_sequence(
        other_side, rank_only=rank_only
    ):
        return next(_relevant_operations(side, rank_only=rank_only), None)
    return None


def _relevant_operations(
    path: Sequence[Effect], *, rank_only: bool
) -> Iterator[tuple[Operation, tuple[SourceLine, ...]]]:
    for op, chain in islice(iter_operations(path), _MAX_OPERATIONS):
        if counts(op, rank_only=rank_only):
            yield op, chain


def _operation_key(op: Operation) -> tuple[str, str]:
    return op.name, op.group.value


def find_undecided(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield branches and loops with collectives for which uniformity is unknown."""
    for effect in unfold_early_exits(path):
        match effect:
            case Branch(taint=test, known=known, yes=yes, no=no):
                if not test and not known and collective_sequence(yes) != collective_sequence(no):
                    for divergence in _unmatched_side(effect, barrier=False, rank_only=False):
                        yield replace(divergence, kind="undecided")
                yield from find_undecided(yes)
                yield from find_undecided(no)
            case LoopEffect(
                count_taint=count, order_taint=order, known=known, body=body, orelse=after
            ):
                operation = (
                    None
                    if known or count or order
                    else next(_relevant_operations(body, rank_only=False), None)
                )
                if operation is not None:
                    yield Divergence(
                        "undecided", effect.location, effect.location, effect.text, (), *operation
                    )
                yield from find_undecided(body)
                yield from find_undecided(after)
            case Try(body=body, handlers=handlers, final_body=last):
                for block in (body, *(handled for _, _, handled in handlers), last):
                    yield from find_undecided(block)
            case _:
                pass


def checks_shared_storage(divergence: Divergence) -> bool:
    """Return True for a file test in another file of the program: usually on shared storage."""
    elsewhere = bool(divergence.sources) and all(
        source.file != divergence.guard.file for source in divergence.sources
    )
    return (
        elsewhere
        and divergence.kind in ("branch", "exit", "loop")
        and taint_kinds(divergence.sources) == {TaintKind.FILES}
    )


# ---- loops


def _loop_divergences(loop: LoopEffect) -> Iterator[Divergence]:
    if not (loop.count_taint or loop.order_taint):
        return
    rank_only = bool(loop.count_taint) and is_rank_only(loop.count_taint)
    index = _ENUMERATED.match(loop.text)
    body = _without_bounded(loop.body, index[1]) if index is not None else loop.body
    counted = _relevant_operations(body, rank_only=rank_only)
    ddp = ("forward", "backward") if loop.joined else ()
    first = next((operation for operation in counted if operation[0].kind not in ddp), None)
    if first is None:
        return
    op, chain = first
    if loop.count_taint:
        yield Divergence(
            "loop", loop.location, loop.location, loop.text, loop.count_taint, op, chain
        )
    else:
        yield Divergence(
            "order", loop.location, loop.location, loop.text, loop.order_taint, op, chain
        )


def _without_bounded(path: Sequence[Effect], index: str) -> EffectPath:
    """Return the body of a loop without what a bound on its index skips in the last iterations.

    ``if index < fewest: all_reduce()``: ranks with more iterations do not enter it in those.
    """
    kept: list[Effect] = []
    for effect in path:
        match effect:
            case Branch(text=text, yes=yes, no=no):
                tests = conjuncts_of(text)
                is_bound = any(test.startswith(f"{index} < ") and holds for test, holds in tests)
                inner = () if is_bound else _without_bounded(yes, index)
                kept.append(replace(effect, yes=inner, no=_without_bounded(no, index)))
            case Try(body=body):
                kept.append(replace(effect, body=_without_bounded(body, index)))
            case _:
                kept.append(effect)
    return tuple(kept)
