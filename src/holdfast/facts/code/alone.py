"""Tests that ask whether there are several processes at all: where there is one, nothing differs."""

from __future__ import annotations

import ast
import re

from msgspec.structs import replace

from holdfast.facts.code.modules import dotted
from holdfast.facts.code.values import Value

#: Names that say so; those that ask whether something was set up, of torch.distributed; and others that do not mean it.
_SEVERAL = re.compile(r"(?:^|_)(?:dist|distributed|ddp|multi_?gpu|multi_?process(?:ing)?)(?:_|$)", re.IGNORECASE)
_SET_UP = re.compile(r"(?:^|[._])(?:dist|distributed|process_group)(?:[._].*)?initialized$", re.IGNORECASE)
_OTHERS = re.compile(r"rank|main|master|zero|first|last|leader|primary|local|node|sampler|eval|save", re.IGNORECASE)
#: Numbers of processes, and comparisons with 1 (with 2) that hold where there are several, and where there is one.
_COUNTS = re.compile(
    r"(?:get_|ddp_|dist_|_)*(?:world(?:_?size)?|num_ranks|n_?ranks|num_processes|n_?procs|num_procs|n_?gpus?|num_gpus)"
)
_MANY: dict[tuple[type[ast.cmpop], int], bool] = {
    (ast.Gt, 1): True, (ast.NotEq, 1): True, (ast.GtE, 2): True,
    (ast.Eq, 1): False, (ast.LtE, 1): False, (ast.Lt, 2): False,
}  # fmt: skip


def several(test: ast.expr) -> bool | None:
    """True where those pass that are several processes, False where one that is alone does; None for other tests."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            found = several(operand)
            return None if found is None else not found
        case ast.BoolOp(op=op, values=values):
            answers = {several(each) for each in values if not _is_there(each)}
            return answers.pop() if answers == {isinstance(op, ast.And)} else None
        case ast.Compare(left=left, ops=[how], comparators=[ast.Constant(value=int(limit))]):
            return _MANY.get((type(how), limit)) if _COUNTS.fullmatch(_name(left).rpartition(".")[2].lower()) else None
        case ast.Name() | ast.Attribute() | ast.Call():
            name = _name(test)
            last = name.rpartition(".")[2]
            says = _SET_UP.search(name) or (_SEVERAL.search(last) and not _OTHERS.search(last))
            return True if says else None
        case _:
            return None


def among_others(test: ast.expr) -> bool:
    """``if world_size > 1 and every and step % every == 0``: several processes, and settings beside."""
    both = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else []
    return any(several(each) for each in both)


def _is_there(test: ast.expr) -> bool:
    """``dist.is_available()``, or that it is not, beside another such test."""
    node = test.operand if isinstance(test, ast.UnaryOp) else test
    return _name(node).endswith("is_available")


def _name(node: ast.expr) -> str:
    """A dotted name, or that of what is called without arguments."""
    if isinstance(node, ast.Call):
        return "" if node.args or node.keywords else dotted(node.func)
    return dotted(node)


def alike(value: Value, others: Value | None = None) -> Value:
    """What a process that is alone has: it differs from nobody's, and is agreed where ``others`` agree on it."""
    agreed = value.agreed or (others is not None and others.agreed)
    if agreed is value.agreed and not (value.content or value.length or value.order or value.inner or value.absent):
        return value
    return replace(value, content=(), length=(), order=(), inner=(), absent=(), agreed=agreed)
