"""Find results that are lost, or that are of one rank only: edits, predictions, gradients.

All rest on names, and are advice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.devices import habit
from holdfast.lint.patterns.rank_guards import Unit, is_guarded, iter_units
from holdfast.lint.patterns.scopes import Words, argument, starts_before, walk
from holdfast.lint.patterns.sharded_saves import ONE_RANK
from holdfast.lint.sources.modules import Module, dotted_name, last_name

_WORDS = Words(("GatheredParameters(", ".prepare(", ".predict(", "all_gather("))
_LINES = re.compile("|".join(map(re.escape, _WORDS.parts)))
_FILLS = re.compile(
    r"^(?:zero|fill|copy|normal|uniform|constant|ones|zeros|xavier|kaiming|trunc)_\w*$|^(?:add|mul)_$"
)
_ONE_DEVICE = re.compile(r"\bdevices\s*=\s*(?:1\b|\[0\]|\"1\")|fast_dev_run")
_GATHERS = re.compile(r"gather|barrier|BasePredictionWriter|reduce|get_world_size")
_STEPS_OFTEN = re.compile(r"\.accumulate\(|mixed_precision\s*=\s*[\"']fp16")
_OPTIMIZER = re.compile(r"(?:^|\.)optim\.\w+$|^(?:AdamW?|SGD|Adafactor)$")
_KEEPS_GRADIENTS = re.compile(
    r"no_grad|detach|autograd\.Function|nn\.functional|all_gather_grad|\[\w*\.?(?:rank|get_rank\(\)"
    r"|process_index)\w*\]\s*=|world_size\s*\*|\bdist\.nn\b"
)
_CONTRASTS = re.compile(r"cross_entropy\(|CrossEntropyLoss\(|logsumexp\(|criterion\(")


def find_lost_results(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield the results of all modules but tests that a rank loses, or has its share of."""
    own = [module for module in modules if not module.is_test]
    for module in own:
        if not _WORDS.occur_in(module.text):
            continue
        for unit in iter_units(module, _LINES):
            text = unit.text(unit.node)
            if "GatheredParameters(" in text:
                yield from _lost_edits(unit)
            if "ccelerator" in text and ".prepare(" in text:
                yield from _unprepared(unit)
            if ".predict(" in text and "ightning" in module.text:
                yield from _own_predictions(unit)
            if "all_gather(" in text:
                yield from _lost_gradients(own, unit)


def _lost_edits(unit: Unit) -> Iterator[Divergence]:
    """Yield edits of gathered parameters that are dropped at the end of the block.

    Source: deepspeed 0.19 partition_parameters.py, ``GatheredParameters.__exit__``: without
    ``modifier_rank``, parameters are partitioned with ``has_been_updated=False``.
    """
    for node in unit.nodes:
        if not isinstance(node, ast.With):
            continue
        for item in node.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or last_name(call.func) != "GatheredParameters":
                continue
            rank = argument(call, 1, "modifier_rank")
            if any(keyword.arg is None for keyword in call.keywords) or (
                rank is not None and not (isinstance(rank, ast.Constant) and rank.value is None)
            ):
                continue
            names = _gathered_names(unit, call, node.body)
            edits = (each for each in _walk_all(node.body) if _edited(each) in names)
            edit = next(edits, None)
            if edit is not None:
                message = (
                    "without `modifier_rank`, the edits of gathered parameters are dropped at the "
                    "end of the block: pass the rank whose edits count, such as `modifier_rank=0`"
                )
                yield habit(unit, edit, "result", message)


def _walk_all(block: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in block:
        yield from walk(statement)


def _gathered_names(unit: Unit, call: ast.Call, body: list[ast.stmt]) -> set[str]:
    """Return the variables that hold gathered parameters, or the model that they are of."""
    gathered = argument(call, 0, "params")
    names = _names(gathered) if gathered is not None else set()
    for name in sorted(names):
        for value in unit.assigned(name):
            names |= _names(value)
    for node in _walk_all(body):
        match node:
            case ast.For(target=ast.Tuple(elts=targets), iter=ast.Call(args=[*over]) as each):
                if last_name(each.func) == "zip":
                    pairs = zip(targets, over, strict=False)
                    names |= {last_name(to) for to, part in pairs if names & _names(part)}
            case ast.For(target=ast.Name(id=name), iter=over) if names & _names(over):
                names.add(name)
            case _:
                pass
    return names


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _edited(node: ast.AST) -> str:
    """Return the variable of which a statement changes a parameter in place; empty if none."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments):
            if not _FILLS.match(name):
                return ""
            is_function = dotted_name(owner).endswith("init") and arguments
            return _root(arguments[0] if is_function else owner)
        case ast.Assign(targets=[ast.Attribute(attr="data") as target]):
            return _root(target)
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="data" | "weight") as of)]):
            return _root(of)
        case _:
            return ""


def _root(node: ast.expr) -> str:
    """Return ``net`` for ``net.head.weight.data``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _unprepared(unit: Unit) -> Iterator[Divergence]:
    """Yield the model or the optimizer of a training that Accelerate does not prepare.

    Source: accelerate 1.15 accelerator.py: DDP is applied in ``prepare``; the prepared optimizer
    skips its step while gradients accumulate, and unscales them.
    """
    calls = [call for call in unit.calls if _is_of_accelerator(call, "prepare")]
    trains = any(_is_of_accelerator(call, "backward") for call in unit.calls)
    passed = [value for call in calls for value in call.args]
    names = {ast.unparse(value) for value in passed}
    if not trains or not all(isinstance(value, (ast.Name, ast.Attribute)) for value in passed):
        return
    for made in unit.nodes:
        match made:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as created):
                pass
            case _:
                continue
        if not _OPTIMIZER.search(dotted_name(created.func)) or not created.args:
            continue
        stepped = next(_steps(unit, name), None)
        model = _owner_of_parameters(created.args[0])
        if stepped is None or is_guarded(unit, made):
            continue
        if name not in names and names and _STEPS_OFTEN.search(unit.module.text):
            message = (
                f"`{name}` is not passed to `accelerator.prepare`: it steps in each micro-batch, "
                "and with gradients that are not unscaled"
            )
            yield habit(unit, stepped, "state", message)
        if name in names and model and model not in names and _is_called(unit, model):
            message = (
                f"`{model}` is not passed to `accelerator.prepare`: no wrapper averages its "
                "gradients over ranks"
            )
            yield habit(unit, made, "state", message)


def _is_of_accelerator(call: ast.Call, name: str) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == name
        and last_name(call.func.value).endswith("accelerator")
    )


def _steps(unit: Unit, name: str) -> Iterator[ast.Call]:
    for call in unit.calls:
        if dotted_name(call.func) == f"{name}.step":
            yield call


def _owner_of_parameters(node: ast.expr) -> str:
    """Return ``model`` for ``model.parameters()``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr="parameters")):
            return owner
        case _:
            return ""


def _is_called(unit: Unit, name: str) -> bool:
    """Return True if the function calls a model whose variable is set once at most."""
    called = any(isinstance(call.func, ast.Name) and call.func.id == name for call in unit.calls)
    return called and len(unit.assigned(name)) < 2


def _own_predictions(unit: Unit) -> Iterator[Divergence]:
    """Yield the predictions of Lightning's trainer that one rank saves as if they were all.

    Source: lightning 2.6 trainer.predict: it returns the predictions of this process.
    """
    text = unit.text(unit.node)
    if _GATHERS.search(unit.module.text) or _ONE_DEVICE.search(text):
        return
    for name, value in _assigned_names(unit):
        called = dotted_name(value.func)
        if not called.endswith("trainer.predict"):
            continue
        for node in unit.nodes:
            if isinstance(node, ast.If) and ONE_RANK.search(ast.unparse(node.test)):
                used = [
                    each
                    for each in _walk_all(node.body)
                    if isinstance(each, ast.Name) and each.id == name
                ]
                if used and starts_before(value, used[0]):
                    message = (
                        f"`{name}` has the predictions of this rank's share of the data, and only "
                        "one rank uses it: gather those of all ranks first"
                    )
                    yield habit(unit, used[0], "result", message)
                    return


def _assigned_names(unit: Unit) -> Iterator[tuple[str, ast.Call]]:
    for node in unit.nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
                yield name, value
            case _:
                pass


def _lost_gradients(modules: Collection[Module], unit: Unit) -> Iterator[Divergence]:
    """Yield embeddings that all_gather collects for a loss: its results carry no gradient.

    Source: torch.distributed.all_gather (2.13.0); torch.distributed.nn.all_gather carries it.
    """
    if _KEEPS_GRADIENTS.search(unit.text(unit.node)) or "no_grad" in _before(unit):
        return
    for call in unit.calls:
        if last_name(call.func) != "all_gather" or not dotted_name(call.func).startswith(
            ("dist.", "torch.distributed.")
        ):
            continue
        parts = argument(call, 0, "tensor_list")
        if not isinstance(parts, ast.Name):
            continue
        for node in unit.nodes:
            match node:
                case ast.Return(value=ast.Call(args=[ast.Name(id=joined), *_]) as cat):
                    if joined == parts.id and last_name(cat.func) in ("cat", "concat", "vstack"):
                        name = getattr(unit.node, "name", "")
                        if _feeds_contrast(modules, name):
                            message = (
                                f"all_gather carries no gradient: the loss that uses `{name}` does "
                                "not train what it gathers; put the rank's own part in its place, "
                                "or use torch.distributed.nn.all_gather"
                            )
                            yield habit(unit, call, "result", message)
                case _:
                    pass


def _before(unit: Unit) -> str:
    """Return the decorators of a function."""
    return " ".join(map(ast.unparse, getattr(unit.node, "decorator_list", ())))


def _feeds_contrast(modules: Collection[Module], name: str) -> bool:
    """Return True if a function multiplies what a function gathers, and computes a loss of it."""
    if not name:
        return False
    for module in modules:
        if f"{name}(" not in module.text or not _CONTRASTS.search(module.text):
            continue
        for unit in iter_units(module, f"{name}("):
            text = unit.text(unit.node)
            if (
                getattr(unit.node, "name", "") == name
                or not _CONTRASTS.search(text)
                or "no_grad" in text
                or "detach" in text
            ):
                continue
            gathered = {
                target
                for node in unit.nodes
                if isinstance(node, ast.Assign) and f"{name}(" in ast.unparse(node.value)
                for target in _target_names(node)
            }
            if any(
                isinstance(node, ast.BinOp)
                and isinstance(node.op, ast.MatMult)
                and gathered & {each.id for each in walk(node) if isinstance(each, ast.Name)}
                for node in unit.nodes
            ):
                return True
    return False


def _target_names(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        for each in walk(target):
            if isinstance(each, ast.Name):
                yield each.id
