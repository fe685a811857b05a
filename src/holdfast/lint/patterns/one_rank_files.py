"""Find files that one rank, or the ranks of one turn, change while the others use them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.rank_guards import RankGuards, Unit
from holdfast.lint.patterns.shared_names import is_shared_path
from holdfast.lint.sources.modules import dotted_name, last_name

WAITING_NAME = re.compile(
    r"barrier|wait|synchroni|block_all|broadcast|all_reduce|all_gather|reduce_|gather|sync"
)
#: A context in which one rank goes first.
_IN_TURN = re.compile(r"first\b|first\(|_first")
#: A test of a rank among those that share the model or the data; others of the world pass, too.
_GROUP_RANK = re.compile(
    r"(data_parallel|tensor\w*_parallel|pipeline\w*_parallel|context_parallel|expert\w*_parallel"
    r"|[dtpce]p)_(?:local_)?rank\w*(?:\(\))? *== *0"
)
_ANY_RANK = re.compile(r"(\w*)rank\b|is_(?:\w*_)?main|master|get_rank|zero", re.IGNORECASE)


class OneRankFiles:
    """Search in one function or method."""

    def __init__(self, guards: RankGuards, unit: Unit) -> None:
        self._guards = guards
        self._unit = unit

    def written(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        """Yield a write under a test that several ranks pass: ``rank <= 1``, ``dp_rank == 0``."""
        tests = [
            parent
            for parent, child in self._unit.ancestors(call)
            if isinstance(parent, ast.If) and child in parent.body
        ]
        for block in tests:
            if _admits_two(block.test):
                yield self._divergence("admitted", block, call, path)
        if tests and self._is_of_one_group(tests) and _is_written_by_name(call):
            yield self._divergence("group", call, call, path)

    def _divergence(self, kind: str, node: ast.AST, guard: ast.AST, path: ast.expr) -> Divergence:
        unit = self._unit
        return Divergence(kind, unit.location(node), unit.location(guard), ast.unparse(path), ())

    def removed_in_turn(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        """Yield what each rank removes in its turn, although the first one may go on to make it."""
        unit = self._unit
        turn = next(
            (
                parent
                for parent, _ in unit.ancestors(call)
                if isinstance(parent, ast.With)
                and any(_IN_TURN.search(ast.unparse(item.context_expr)) for item in parent.items)
            ),
            None,
        )
        if turn is None:
            return
        text, end = ast.unparse(path), turn.end_lineno or 0
        later = [node for node in unit.calls if node.lineno > end]
        if any(_used_path(node, {text}) for node in later) and is_shared_path(
            self._guards, unit, path
        ):
            yield self._divergence("turn", call, turn, path)

    def _is_of_one_group(self, tests: list[ast.If]) -> bool:
        """Return True if the tests are of a rank in one of several groups, and of no other."""
        text = " and ".join(ast.unparse(block.test) for block in tests)
        tested = _GROUP_RANK.findall(text)
        others = list(_ANY_RANK.finditer(text))
        return len(tested) == 1 == len(others) and any(
            word in self._unit.module.text
            for word in ("tensor_model_parallel", "pipeline_model_parallel", "tp_rank", "pp_rank")
        )


def _is_written_by_name(call: ast.Call) -> bool:
    """Return True for what is the same on all ranks: a tokenizer, a file of one name."""
    return last_name(call.func) in ("save_pretrained", "write_text")


def _used_path(call: ast.Call, paths: dict[str, ast.Call] | set[str]) -> str:
    """Return the path among the arguments of a call; empty if there is none."""
    for passed in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(passed):
            if isinstance(node, (ast.Name, ast.Attribute)) and (text := ast.unparse(node)) in paths:
                return text
    return ""


def _admits_two(test: ast.expr) -> bool:
    """Return True for a test of the global rank that exactly ranks 0 and 1 pass."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            name = dotted_name(node.left.func if isinstance(node.left, ast.Call) else node.left)
            limit = node.comparators[0]
            number = limit.value if isinstance(limit, ast.Constant) else None
            kind = type(node.ops[0])
            if name.rpartition(".")[2] in ("rank", "get_rank", "global_rank") and (
                (negated and (kind, number) == (ast.Gt, 1))
                or (not negated and (kind, number) in ((ast.LtE, 1), (ast.Lt, 2)))
            ):
                return True
    return False
