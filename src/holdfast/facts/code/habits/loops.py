"""Training loops: what makes the processor wait for the GPU in every round, and gradients that are never averaged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath

from holdfast.facts.code.habits.callees import callee, callers, passage_of
from holdfast.facts.code.habits.passages import LOOPS, Passage, inside
from holdfast.facts.code.modules import FUNCTIONS
from holdfast.facts.code.partings import Parting

#: Methods that give a number or a copy on the host, functions that ask for one, and so deep they are looked for.
_ASKING, _TAKING, _DEEP = frozenset({"item", "tolist", "cpu", "numpy"}), frozenset({"float", "int"}), 3
#: Without these words a program has one process, or no device.
_SHARED = re.compile(r"distributed|accelerat|deepspeed|lightning|\bDDP\b|\bFSDP\b")
_DEVICE = re.compile(r"\bcuda\b|\bdevice\b|accelerat|deepspeed")
#: So many calls of a loop are followed.
_MOST = 200
#: So many rounds are a demonstration, and no training.
_FEW = 100
_AVERAGING = re.compile(r"reduce|average|sync(?!$)|gather|broadcast")


def loops(seen: Sequence[Passage]) -> Iterator[Parting]:
    """The partings of the passages of one module."""
    for passage in seen:
        yield from _never_averaged(passage)
    text = seen[0].module.text if seen else ""
    if _SHARED.search(text) and _DEVICE.search(text):
        for passage in seen:
            for loop in passage.nodes:
                if isinstance(loop, LOOPS) and not _short(loop) and not _test(passage):
                    yield from _hot(passage, loop)
            yield from _steps(passage)


# ---- waiting for the GPU in every round


def _short(loop: ast.AST) -> bool:
    """A loop over so many rounds as a constant says."""
    match loop:
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[ast.Constant(value=int(rounds))])):
            return rounds <= _FEW
        case _:
            return False


def _test(passage: Passage) -> bool:
    """A test wants to see each loss."""
    return passage.name.startswith("test") or PurePath(passage.module.file).name.startswith("test_")


def _hot(passage: Passage, loop: ast.For | ast.AsyncFor | ast.While) -> Iterator[Parting]:
    own = inside(*loop.body, closed=(*LOOPS, *FUNCTIONS))
    tensors = _tensors(own)
    if not tensors:
        return
    found = _asked(passage, loop.body, tensors)
    if found is not None:
        where, node = found
        yield Parting("hot-sync", where.place(node), passage.place(loop), ast.unparse(node), ())


def _steps(passage: Passage) -> Iterator[Parting]:
    """A function of one step, that calls backward, and the loop that calls it: what either asks for each time."""
    own = inside(*passage.node.body, closed=(*LOOPS, *FUNCTIONS))
    tensors = _tensors(own)
    if not tensors or _test(passage):
        return
    inner = _asked(passage, passage.node.body, tensors)
    gives = all(_tensor(each.value, tensors) for each in own if isinstance(each, ast.Return) and each.value is not None)
    for caller, call in callers(passage):
        for loop in caller.nodes:
            if not isinstance(loop, LOOPS) or _short(loop) or _test(caller) or call not in _always(loop.body):
                continue
            given = _assigned_to(loop.body, call) if gives else set()
            found = inner or (_asked(caller, loop.body, given) if given else None)
            if found is not None:
                where, node = found
                yield Parting("hot-sync", where.place(node), caller.place(loop), ast.unparse(node), ())
                return


def _assigned_to(body: Sequence[ast.stmt], call: ast.Call) -> set[str]:
    """The variables that hold what a call gives."""
    return {
        target.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Assign) and node.value is call
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _tensors(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of what backward is called for, of its parts, and of what is made of it."""
    nodes = list(nodes)
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr="backward", value=value), args=args):
                found |= set(_summands(args[0] if args else value))
            case _:
                pass
    if not found:
        return found
    assigned = {
        node.targets[0].id: node.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for name in list(found):
        whole = assigned.get(name)
        if isinstance(whole, ast.BinOp):
            found |= {each for each in _summands(whole) if isinstance(assigned.get(each), (ast.Call, ast.Subscript))}
    for name, value in assigned.items():
        clipped = isinstance(value, ast.Call) and ast.unparse(value.func).endswith("clip_grad_norm_")
        if clipped or (not isinstance(value, ast.Name) and _tensor(value, found)):
            found.add(name)
    return found


def _summands(node: ast.expr) -> Iterator[str]:
    """Names of tensors of which an expression is made: ``scaler.scale(a + b / n)`` of ``a`` and ``b``."""
    match node:
        case ast.Name(id=name):
            yield name
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _summands(left)
            yield from _summands(right)
        case ast.BinOp(left=ast.Constant() | ast.Attribute(), op=ast.Mult(), right=right):
            yield from _summands(right)
        case ast.BinOp(left=left):
            yield from _summands(left)
        case ast.Call(args=[first, *_]):
            yield from _summands(first)
        case ast.Call(func=ast.Attribute(value=value)):
            yield from _summands(value)
        case _:
            pass


def _tensor(node: ast.expr, tensors: set[str]) -> bool:
    """An expression whose value is a tensor on the device, since it is made of one by methods or operators."""
    match node:
        case ast.Name(id=name):
            return name in tensors
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return attr not in _ASKING and attr not in ("backward", "size", "dim") and _tensor(value, tensors)
        case ast.Attribute(value=value, attr="data"):
            return _tensor(value, tensors)
        case ast.BinOp(left=left, right=right):
            return _tensor(left, tensors) or _tensor(right, tensors)
        case _:
            return False


def _asked(
    passage: Passage, body: Sequence[ast.stmt], tensors: set[str], been: frozenset[int] = frozenset()
) -> tuple[Passage, ast.expr] | None:
    """The first expression that asks for the value of one of the tensors each time."""
    tried = 0
    for node in _always(body):
        if _asks(node, tensors) and isinstance(node, ast.expr):
            return passage, node
        if isinstance(node, ast.Call) and len(been) < _DEEP and tried < _MOST:
            tried += 1
            found = _within(passage, node, tensors, been)
            if found is not None:
                return found
    return None


def _asks(node: ast.AST, tensors: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _ASKING:
            made = attr == "item" and isinstance(value, ast.Call) and any(_tensor(each, tensors) for each in value.args)
            return made or _tensor(value, tensors)
        case ast.Call(func=ast.Name(id=name), args=[value]) if name in _TAKING:
            return _tensor(value, tensors)
        case ast.Call(func=ast.Name(id="print"), args=args):
            return any(_tensor(each, tensors) for each in args)
        case ast.FormattedValue(value=value):
            return _tensor(value, tensors)
        case _:
            return False


def _always(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """What is evaluated in every round: nothing under a condition, of inner loops or of inner functions."""
    for statement in body:
        match statement:
            case ast.With(items=items, body=inner) | ast.AsyncWith(items=items, body=inner):
                for item in items:
                    yield from _eager(item.context_expr)
                yield from _always(inner)
            case ast.Try(body=inner):
                yield from _always(inner)
            case ast.If(test=test):
                if any(isinstance(each, ast.Continue) for each in inside(statement)) and _counts(test):
                    return
            case ast.For() | ast.AsyncFor() | ast.While() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case _:
                yield from _eager(statement)


def _counts(test: ast.expr) -> bool:
    return any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mod) for each in inside(test))


def _eager(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that are evaluated whenever the whole is; the outermost first."""
    yield node
    match node:
        case ast.IfExp(test=test):
            yield from _eager(test)
        case ast.BoolOp(values=[first, *_]):
            yield from _eager(first)
        case ast.Lambda():
            pass
        case _:
            for each in ast.iter_child_nodes(node):
                yield from _eager(each)


def _within(
    passage: Passage, call: ast.Call, tensors: set[str], been: frozenset[int]
) -> tuple[Passage, ast.expr] | None:
    """The same in a function of the program that is given one of the tensors."""
    function = callee(passage, call)
    inner = passage_of(function, passage) if function is not None else None
    if function is None or inner is None or id(inner.node) in been:
        return None
    names = function.parameters[int(function.owner is not None) :]
    given = {name for name, each in zip(names, call.args, strict=False) if _tensor(each, tensors)}
    given |= {each.arg for each in call.keywords if each.arg in names and _tensor(each.value, tensors)}
    return _asked(inner, inner.node.body, given, been | {id(inner.node)}) if given else None


# ---- gradients that are never averaged


def _never_averaged(passage: Passage) -> Iterator[Parting]:
    """Every backward before a step stands in ``with model.no_sync()``, and nothing else averages."""
    blocks = [
        node
        for node in passage.nodes
        if isinstance(node, ast.With) and any(_named(item.context_expr, "no_sync") for item in node.items)
    ]
    if not blocks:
        return
    apart = {id(node) for block in blocks for node in inside(*block.body)}
    backward = [node for node in passage.nodes if _named(node, "backward")]
    if not backward or not all(id(node) in apart for node in backward) or _averages(passage):
        return
    first = next(block for block in blocks if any(node is backward[0] for node in inside(*block.body)))
    around = [passage, *(caller for caller, _ in callers(passage))]
    if any(_averages(each) or any(_named(node, "backward") for node in each.nodes) for each in around[1:]):
        return
    step = next(((each, node) for each in around for node in each.nodes if _steps_on(node)), None)
    if step is not None:
        where, node = step
        yield Parting("no-sync", passage.place(first), where.place(node), ast.unparse(node), ())


def _steps_on(node: ast.AST) -> bool:
    """The step of an optimizer."""
    return _named(node, "step") and "opt" in ast.unparse(node).lower()


def _averages(passage: Passage) -> bool:
    """Something in it may average gradients."""
    return any(
        isinstance(node, ast.Call) and _AVERAGING.search(ast.unparse(node.func).rpartition(".")[2])
        for node in passage.nodes
        if not _named(node, "no_sync")
    )


def _named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
