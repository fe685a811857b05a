"""Find collectives under a test that is one of the rank, or of a rank's own data, by its names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.conditions import (
    conditions_of_side,
    excludes_sharding,
    is_whole_by,
)
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.patterns.by_name.local_values import LocalValues
from holdfast.lint.patterns.by_name.names import RUNS_ONE_RANK, SHARDED_CALLS, is_rank_test
from holdfast.lint.patterns.by_name.programs import EnteredCall, NamedCollectives
from holdfast.lint.patterns.rank_guards import Unit
from holdfast.lint.sources.modules import FUNCTIONS

_LEAVES = (ast.Return, ast.Continue, ast.Break)
_CONTEXT = re.compile(r"main_process_first|no_sync|zero_first|master_first|rank_zero_first")
#: A test by which a rank of the data-parallel group is chosen.
_DATA_RANK = re.compile(r"\bdp_rank|data_parallel_rank")
#: A test of the rank in a group: ``get_rank(mesh.get_group("rows"))``.
_GROUP_RANK = re.compile(r"\bget_rank\((?:group=)?\w")
_FILE_TEST = re.compile(r"\b(?:exists|isfile|isdir|is_file|is_dir)\(")
_MAX_TEXT = 70


@dataclass(frozen=True, slots=True)
class _Guard:
    """A test, with the statements that follow it up to the end of the function or loop."""

    node: ast.If
    rest: tuple[ast.stmt, ...]
    loop_rest: tuple[ast.stmt, ...]
    loop: ast.For | ast.AsyncFor | ast.While | None


def find_guarded(
    collectives: NamedCollectives, unit: Unit, *, strict: bool
) -> Iterator[Divergence]:
    """Yield collectives that only some ranks enter, and exits that skip one."""
    functions = [node for node in unit.nodes if isinstance(node, FUNCTIONS)]
    blocks = [function.body for function in functions]
    if not isinstance(unit.node, FUNCTIONS):
        blocks.append([unit.node])
    for block in blocks:
        yield from _FunctionGuards(collectives, unit, strict=strict).find(block)


class _FunctionGuards:
    """The guarded collectives of one function."""

    def __init__(self, collectives: NamedCollectives, unit: Unit, *, strict: bool) -> None:
        self.strict = strict
        self.collectives, self.unit, self.module = collectives, unit, unit.module
        self.local = LocalValues(collectives, unit)

    def find(self, block: Sequence[ast.stmt]) -> list[Divergence]:
        """Return the divergences; none for tests that hold on complementary ranks."""
        found: list[tuple[ast.If, Divergence]] = []
        for guard in _guards(block):
            divergence = self._judge(guard)
            if divergence is not None:
                found.append((guard.node, divergence))
        sides = [conditions_of_side(ast.unparse(node.test), answer=True) for node, _ in found]
        opposite = {(test, not holds) for side in sides for test, holds in side}
        return [
            divergence
            for (_, divergence), side in zip(found, sides, strict=True)
            if divergence.kind != "branch" or not side & opposite
        ]

    def _judge(self, guard: _Guard) -> Divergence | None:
        node = guard.node
        by_rank = is_rank_test(node.test, self.collectives.one_sided) or (
            self.local.is_decided_by_one(node.test, self.collectives.one_sided)
        )
        yes = self.collectives.first(self.module, node.body)
        no = self.collectives.first(self.module, node.orelse)
        kind = TaintKind.RANK if by_rank else TaintKind.NAMED
        local = self.local.is_local(node.test) or (
            isinstance(node.body[-1], ast.Break) and self.local.stops_training(node.test)
        )
        if by_rank or local or self.local.is_own_list(node.test):
            if (yes is None) != (no is None):
                return self._branch(guard, yes or no, kind)
            if yes is not None:
                return None
            forward = self.local.forward_in(node.body) if by_rank else None
            if forward is not None and self.local.forward_in(node.orelse) is None:
                return self._divergence("branch", forward.call, guard, forward, kind)
        else:
            return self._by_files(guard, yes, no) if self.strict else None
        return self._exit(guard, kind)

    def _by_files(
        self, guard: _Guard, yes: EnteredCall | None, no: EnteredCall | None
    ) -> Divergence | None:
        """Return the divergence by a test of which files exist, as an undecided one."""
        if not _FILE_TEST.search(ast.unparse(guard.node.test)):
            return None
        if (yes is None) != (no is None):
            found = self._branch(guard, yes or no, TaintKind.FILES)
        else:
            found = self._exit(guard, TaintKind.FILES)
        return replace(found, kind="undecided") if found is not None else None

    def _is_known_parameter(self, test: ast.expr) -> bool:
        """Return True if the test is of a parameter for which a constant is passed."""
        function = self.unit.function_of(test)
        names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
        return function is not None and any(
            parameter in names and self.collectives.passes_constant(function, parameter, at)
            for at, parameter in enumerate(argument.arg for argument in function.args.args)
        )

    def _is_whole(self, guard: _Guard, entered: EnteredCall) -> bool:
        """Return True for I/O of a model, where a test says that the model is not sharded."""
        return entered.name in SHARDED_CALLS and (
            excludes_sharding(ast.unparse(guard.node.test))
            or any(
                is_whole_by(ast.unparse(parent.test), answer=child in parent.body)
                for parent, child in self.unit.ancestors(guard.node)
                if isinstance(parent, ast.If) and child is not parent.test
            )
        )

    def _branch(
        self, guard: _Guard, entered: EnteredCall | None, kind: TaintKind
    ) -> Divergence | None:
        if entered is None or self._is_met_later(guard):
            return None
        if (
            entered.in_group
            and kind is TaintKind.RANK
            and not _DATA_RANK.search(ast.unparse(guard.node.test))
        ):
            return None
        if _GROUP_RANK.search(ast.unparse(guard.node.test)) and "group" in ast.unparse(
            entered.call
        ):
            return None  # the members of one group that have this rank in another
        return self._divergence("branch", entered.call, guard, entered, kind)

    def _is_met_later(self, guard: _Guard) -> bool:
        """Return True if one side leaves, and the other enters the same collective later."""
        for block, other in (
            (guard.node.body, guard.node.orelse),
            (guard.node.orelse, guard.node.body),
        ):
            if block and isinstance(block[-1], (*_LEAVES, ast.Raise)):
                inside = self.collectives.first(self.module, block)
                later = self.collectives.first(self.module, [*other, *guard.rest])
                if inside is not None and later is not None:
                    return True
        return False

    def _exit(self, guard: _Guard, kind: TaintKind) -> Divergence | None:
        node = guard.node
        if any(map(_starts_single_job, (*node.body, *node.orelse, *guard.rest))):
            return None
        for block, other in ((node.body, node.orelse), (node.orelse, node.body)):
            leaving = _leaving(block, nested=kind is TaintKind.RANK)
            if kind is TaintKind.FILES and leaving is None and block:
                leaving = block[-1] if isinstance(block[-1], ast.Raise) else None
            skipped = self._skipped(guard, leaving, other) if leaving is not None else None
            if leaving is not None and skipped is not None:
                keyword = type(leaving).__name__.lower()
                return self._divergence("exit", leaving, guard, skipped, kind, keyword)
        return None

    def _skipped(
        self, guard: _Guard, leaving: ast.stmt, other: Sequence[ast.stmt]
    ) -> EnteredCall | None:
        """Return the collective or backward pass that a rank skips by leaving."""
        in_loop = isinstance(leaving, (ast.Continue, ast.Break))
        rest = guard.loop_rest if in_loop else guard.rest  # `break` reaches what follows the loop
        skipped = self.collectives.first_always(self.module, [*other, *rest])
        if skipped is None and guard.loop is not None and in_loop:
            if isinstance(leaving, ast.Break):
                skipped = self.collectives.first_always(self.module, guard.loop.body)
            skipped = skipped or self.local.training_in([guard.loop])
        if skipped is None and not in_loop:
            skipped = self.local.training_in(guard.rest)
        return skipped

    def _divergence(
        self,
        what: str,
        at: ast.AST,
        guard: _Guard,
        entered: EnteredCall,
        kind: TaintKind,
        detail: str = "",
    ) -> Divergence | None:
        unit, node = self.unit, guard.node
        function = unit.function_of(node)
        if function is not None and any(
            RUNS_ONE_RANK.search(ast.unparse(decorator)) for decorator in function.decorator_list
        ):
            return None
        if self._is_known_parameter(node.test) or self._is_whole(guard, entered):
            return None
        location, guard_location = unit.location(at), unit.location(node)
        text = ast.unparse(node.test)
        text = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
        source = TaintSource(kind, self.module.file, node.lineno, text, by_name=True)
        operation = Operation(
            entered.name,
            SourceLine(entered.module.file, entered.line, location.function),
            kind=entered.kind,
        )
        return Divergence(
            what, location, guard_location, f"if {text}", (source,), operation, detail=detail
        )


def _starts_single_job(statement: ast.stmt) -> bool:
    """Return True if the rank that goes on makes itself a job of one process."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and node.value.value in ("1", 1)
        and isinstance(node.targets[0], ast.Subscript)
        and isinstance(node.targets[0].slice, ast.Constant)
        and node.targets[0].slice.value == "WORLD_SIZE"
        for node in ast.walk(statement)
    )


def _leaving(block: Sequence[ast.stmt], *, nested: bool) -> ast.stmt | None:
    """Return the statement at the end of a block that leaves; optionally one under a test in it."""
    if block and isinstance(block[-1], _LEAVES):
        return block[-1]
    for statement in block if nested else ():
        if isinstance(statement, ast.If):
            for inner in (statement.body, statement.orelse):
                leaving = _leaving(inner, nested=True)
                if leaving is not None:
                    return leaving
    return None


def _guards(
    block: Sequence[ast.stmt],
    rest: tuple[ast.stmt, ...] = (),
    loop_rest: tuple[ast.stmt, ...] = (),
    loop: ast.For | ast.AsyncFor | ast.While | None = None,
) -> Iterator[_Guard]:
    """Yield the tests of a block and of the blocks in it."""
    for at, statement in enumerate(block):
        after = tuple(block[at + 1 :])
        following, following_in_loop = after + rest, after + loop_rest
        match statement:
            case ast.If():
                yield _Guard(statement, following, following_in_loop, loop)
                for inner in (statement.body, statement.orelse):
                    yield from _guards(inner, following, following_in_loop, loop)
            case ast.For() | ast.AsyncFor() | ast.While():
                yield from _guards(statement.body, following, (), statement)
                yield from _guards(statement.orelse, following, following_in_loop, loop)
            case ast.With() | ast.AsyncWith():
                if not any(_CONTEXT.search(ast.unparse(item)) for item in statement.items):
                    yield from _guards(statement.body, following, following_in_loop, loop)
            case ast.Try():
                final = tuple(statement.finalbody)
                handled = [handler.body for handler in statement.handlers]
                for inner in (statement.body, statement.orelse, *handled):
                    yield from _guards(inner, final + following, final + following_in_loop, loop)
                yield from _guards(final, following, following_in_loop, loop)
            case ast.ClassDef():
                yield from _guards(statement.body)
            case _:
                pass
