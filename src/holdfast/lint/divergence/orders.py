"""Find uses of lists whose order is each rank's own: shares, samplers, numbers of names."""

from __future__ import annotations

import ast
import re

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    Taint,
    TaintKind,
    Value,
    set_order,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import RANK_SHARE, Instance
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import FUNCTIONS

#: Words of what is text: a set of numbers has one order in all processes.
_TEXTS = re.compile(
    r"word|tok(?:en)?|char|vocab|label|class|name|tag|text|symbol|split\(|relation|entit",
    re.IGNORECASE,
)
#: What may give all ranks one numbering, or writes it for a later run.
_SHARES = re.compile(r"broadcast|gather|scatter|dump\(|\.save\(|write\(")


def record_habit(
    state: InterpreterState, frame: Frame, node: ast.AST, kind: str, message: str
) -> None:
    """Record, by names, a use of a value that has another meaning on each rank."""
    if frame.scope.module.is_test:  # which runs on one host
        return
    at = frame.location(node)
    divergence = Divergence(
        kind, at, at, message.partition(":")[0], (), detail=message, by_name=True
    )
    state.summaries.current.divergences.setdefault((kind, at), divergence)


def record_unordered_share(
    state: InterpreterState, frame: Frame, node: ast.AST, base: Value, bounds: Taint
) -> None:
    """Record a rank's share of a list that other ranks may have in another order."""
    if not base.order or not taint_kinds(bounds) & RANK_KINDS:
        return
    drawn = base.order[0].kind is not TaintKind.ORDER
    remedy = "shuffle it with one seed" if drawn else "sort it before"
    message = (
        f"each rank takes a share of a list whose order is its own ({base.order[0].text}): shares "
        f"overlap, and some elements are in none; {remedy}"
    )
    record_habit(state, frame, node, "habit-order", message)


def record_filtered_share(
    state: InterpreterState, frame: Frame, test: ast.expr, over: Value, answer: Value
) -> None:
    """Record ``if i % world_size == rank`` in a loop over a list of a rank's own order."""
    if any(isinstance(node, ast.Mod) for node in ast.walk(test)):
        record_unordered_share(state, frame, test, over, answer.content)


def record_unordered_data(state: InterpreterState, call: LibraryCall) -> None:
    """Record a sampler of all ranks over a data set whose elements have each rank's own order.

    Source: torch.utils.data.DistributedSampler deals out positions, not elements.
    """
    data = call.arguments.get(0, "dataset")
    if data is None:
        return
    orders = [_element_order(state, obj) for obj in data.objects_of(Instance)]
    # a factory may return one of several classes
    order = _certain(data.order) or (orders[0] if orders and all(orders) else ())
    if order:
        message = (
            f"DistributedSampler deals out positions in a list whose order is each rank's own "
            f"({order[0].text}): ranks get some samples twice, and others never; sort it before"
        )
        record_habit(state, call.frame, call.node, "habit-order", message)


def _element_order(state: InterpreterState, data: Instance) -> Taint:
    """Return why a data set has its elements in each rank's own order, by its ``__getitem__``."""
    method = state.symbols.find_method(data.cls, "__getitem__")
    if method is None or not method.parameters:
        return ()
    text, at = ast.unparse(method.node), method.parameters[-1]
    held = (
        _certain(value.order)
        for name, value in data.cls.attributes.items()
        if value.order and f"self.{name}[{at}]" in text
    )
    return next((order for order in held if order), ())


def record_second_share(state: InterpreterState, call: LibraryCall) -> None:
    """Record a DistributedSampler of all ranks over the share that a rank already has.

    Its length shows that: each rank has its own.
    """
    data = call.arguments.get(0, "dataset")
    named = call.arguments.named
    if data is None or call.arguments.get(1, "num_replicas") is not None or "rank" in named:
        return
    own = [source for source in (*data.length, *data.content) if source.kind is TaintKind.RANK]
    if own or RANK_SHARE in data.objects:
        why = own[0].text if own else "split_dataset_by_node"
        message = (
            f"each rank has its own share of these data already ({why}), and "
            "DistributedSampler divides it once more: most samples are never read; do one of the "
            "two"
        )
        record_habit(state, call.frame, call.node, "habit-sampler", message)


def record_share_of_whole(
    state: InterpreterState, frame: Frame, node: ast.BinOp, counted: Value
) -> None:
    """Record what a rank counts in its own share, divided by the size of the whole data set."""
    if not counted.agreed and TaintKind.DATA in taint_kinds(counted.content):
        message = (
            f"`{state.unparse(node.left)}` counts this rank's share only, and "
            f"`{state.unparse(node.right)}` is the size of all data: the quotient shrinks with the "
            "number of ranks; sum both over the ranks"
        )
        record_habit(state, frame, node, "habit-result", message)


def record_unordered_numbers(state: InterpreterState, frame: Frame, node: ast.DictComp) -> None:
    """Record numbers in each rank's own order: ``{name: i for i, name in enumerate(names)}``."""
    generator = node.generators[0]
    match generator:
        case ast.comprehension(
            target=ast.Tuple(elts=[ast.Name(id=number), _]),
            iter=ast.Call(func=ast.Name(id="enumerate"), args=[over, *_]),
        ):
            pass
        case _:
            return
    if not (isinstance(node.value, ast.Name) and node.value.id == number):
        return
    if taint_kinds(frame.control) & RANK_KINDS or _SHARES.search(_text_around(frame)):
        return
    text = state.unparse(over)
    if "." in text and f"{text}[" in frame.scope.module.text:
        return  # the positions in a list of this process
    order = _certain(state.evaluate(frame, over).order)
    is_set = bool(order) and "set" in order[0].text
    if order and (not is_set or _TEXTS.search(state.unparse(node) + order[0].text)):
        message = (
            f"names get numbers in an order that is each process's own ({order[0].text}): one name "
            "has different numbers on different ranks; sort the names before"
        )
        record_habit(state, frame, node, "habit-order", message)


def _text_around(frame: Frame) -> str:
    node = frame.tree
    if not isinstance(node, FUNCTIONS):
        return ""
    return "\n".join(frame.scope.module.lines[node.lineno - 1 : node.end_lineno])


def _certain(order: Taint) -> Taint:
    """Return the sources of a set or listing on all paths."""
    return tuple(source for source in set_order(order) if not source.weak)
