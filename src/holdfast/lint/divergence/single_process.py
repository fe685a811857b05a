"""Recognize tests for more than one process: in a single process, nothing diverges."""

from __future__ import annotations

import ast
import re

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import Value
from holdfast.lint.sources.modules import dotted_name

#: Names of distributed modes; of torch.distributed's initialization tests; and of unrelated tests.
_DISTRIBUTED_NAME = re.compile(
    r"(?:^|_)(?:dist|distributed|ddp|multi_?gpu|multi_?process(?:ing)?)(?:_|$)", re.IGNORECASE
)
_INITIALIZED_NAME = re.compile(
    r"(?:^|[._])(?:dist|distributed|process_group)(?:[._].*)?initialized$", re.IGNORECASE
)
_OTHER_MEANING = re.compile(
    r"rank|main|master|zero|first|last|leader|primary|local|node|sampler|eval|save", re.IGNORECASE
)
#: Names of process counts, and comparisons that hold (True) only for several processes.
_PROCESS_COUNT = re.compile(
    r"(?:get_|ddp_|dist_|_)*(?:world(?:_?size)?|num_ranks|n_?ranks|num_processes|n_?procs|num_procs"
    r"|n_?gpus?|num_gpus)"
)
_COMPARISONS: dict[tuple[type[ast.cmpop], int], bool] = {
    (ast.Gt, 1): True, (ast.NotEq, 1): True, (ast.GtE, 2): True,
    (ast.Eq, 1): False, (ast.LtE, 1): False, (ast.Lt, 2): False,
}  # fmt: skip
#: Comparisons of the rank with -1 that hold (True) only for several processes.
_WITHOUT_LAUNCHER = {ast.NotEq: True, ast.Gt: True, ast.Eq: False, ast.LtE: False}


def checks_multiple_processes(test: ast.expr) -> bool | None:
    """Return True if a test holds for several processes, False if for one; None for other tests."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            answer = checks_multiple_processes(operand)
            return None if answer is None else not answer
        case ast.BoolOp(op=op, values=values):
            answers = {
                checks_multiple_processes(value)
                for value in values
                if not _is_availability_test(value)
            }
            return answers.pop() if answers == {isinstance(op, ast.And)} else None
        case ast.Compare(
            left=left,
            ops=[operator],
            comparators=[ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))],
        ) if _last_part(left).endswith("rank"):  # without a launcher, the rank is -1
            return _WITHOUT_LAUNCHER.get(type(operator))
        case ast.Compare(
            left=left, ops=[operator], comparators=[ast.Constant(value=int(limit))]
        ) if _PROCESS_COUNT.fullmatch(_last_part(left)):
            return _COMPARISONS.get((type(operator), limit))
        case ast.Name() | ast.Attribute() | ast.Call():
            name = _test_name(test)
            last = name.rpartition(".")[2]
            matches_name = _INITIALIZED_NAME.search(name) or (
                _DISTRIBUTED_NAME.search(last) and not _OTHER_MEANING.search(last)
            )
            return True if matches_name else None
        case _:
            return None


def checks_multiple_among_others(test: ast.expr) -> bool:
    """Return True for ``if world_size > 1 and every and step % every == 0``."""
    operands = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else []
    return any(checks_multiple_processes(operand) for operand in operands)


def _is_availability_test(test: ast.expr) -> bool:
    """Return True for ``dist.is_available()`` or its negation."""
    node = test.operand if isinstance(test, ast.UnaryOp) else test
    return _test_name(node).endswith("is_available")


def _last_part(node: ast.expr) -> str:
    return _test_name(node).rpartition(".")[2].lower()


def _test_name(node: ast.expr) -> str:
    """Return a dotted name, or that of a call without arguments."""
    if isinstance(node, ast.Call):
        return "" if node.args or node.keywords else dotted_name(node.func)
    return dotted_name(node)


def as_uniform(value: Value, others: Value | None = None) -> Value:
    """Return the value in a single process: without taint, and agreed if ``others`` are agreed."""
    agreed = value.agreed or (others is not None and others.agreed)
    if agreed is value.agreed and not (
        value.content or value.length or value.order or value.element_length or value.absent
    ):
        return value
    return replace(
        value, content=(), length=(), order=(), element_length=(), absent=(), agreed=agreed
    )
