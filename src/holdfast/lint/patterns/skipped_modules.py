"""Find parts of a wrapped model that a rank leaves out because of its own batch.

The backward of the others waits in the reduction of the gradients of these parts (DDP), or their
forward in the gather of the parameters (FSDP).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import walk, walk_nodes
from holdfast.lint.sources.modules import Class, Module, SymbolTable

_WRAPPED = re.compile(
    r"DistributedDataParallel|FullyShardedDataParallel|\bDDP\(|\bFSDP\(|fully_shard\("
    r"|strategy *= *[\"'](?:ddp|fsdp)|accelerator\.prepare\(|fabric\.setup\(|deepspeed\.initialize"
)
_SHARDED = re.compile(r"FullyShardedDataParallel|\bFSDP\(|fully_shard\(|[\"']fsdp|stage[\"']?: *3")
_FINDS_UNUSED = re.compile(r"find_unused_parameters[\"']? *[=:] *True|find_unused_parameters_true")
_METHODS = frozenset({"forward", "training_step", "loss", "compute_loss"})
_MODULES = (
    "torch.nn.Module", "torch.nn.modules.module.Module", "lightning.LightningModule",
    "lightning.pytorch.LightningModule", "pytorch_lightning.LightningModule",
)  # fmt: skip
_CONSTANTS = frozenset({"tensor", "zeros", "new_zeros", "new_tensor", "zeros_like", "full"})
_COUNTS = frozenset({"numel", "sum", "any", "all", "size", "count_nonzero", "nelement"})

#: A dict that is a batch: other dicts hold settings or conditions, which ranks usually share.
_BATCH_NAME = re.compile(r"batch|inputs?|data|samples?|examples?|features|targets?")
#: An entry of a batch that is None on a condition other than the model's own.
_OPTIONAL_ENTRY = re.compile(r"[\"'](\w+)[\"'](?:: |\] = )(?=.* if (?!self\.).* else None\b)")

_CONSTANT_LOSS = (
    "under `{}` a rank returns a constant that depends on no parameter: it runs no backward for "
    "the model, and the other ranks wait for its gradients"
)


def find_skipped_modules(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield tests of a batch in a model's methods that leave out a part of it or the whole loss."""
    modules = [module for module in modules if not module.is_test]
    texts = [module.text for module in modules]
    if not any(map(_WRAPPED.search, texts)):
        return
    if any(map(_FINDS_UNUSED.search, texts)) and not any(map(_SHARDED.search, texts)):
        return
    optional = _optional_entries(texts)
    for module in modules:
        for cls in module.names.values():
            if isinstance(cls, Class) and cls.module is module and _is_model(names, cls):
                yield from _skips_in(cls, optional)
        if "requires_grad=True" in module.text:
            yield from _constant_losses(module, optional)


def _optional_entries(texts: Sequence[str]) -> set[str]:
    """Return the keys of entries that the program sets to None for some batches."""
    return {
        name
        for text in texts
        if " else None" in text
        for line in text.splitlines()
        if " else None" in line
        for name in _OPTIONAL_ENTRY.findall(line)
    }


def _constant_losses(module: Module, optional: Collection[str]) -> Iterator[Divergence]:
    """Yield tests of a batch under which a function returns a loss that nothing computes."""
    for function in module.functions():
        for node in walk_nodes(*getattr(function.node, "body", ())):
            if not isinstance(node, ast.If) or not _returns_loss(node):
                continue
            if _tests_batch(node.test, _names(node.test), optional):
                at, test = (
                    SourceLine(module.file, node.lineno, function.name),
                    ast.unparse(node.test),
                )
                detail = _CONSTANT_LOSS.format(test)
                text = f"if {test}"
                yield Divergence("habit-branch", at, at, text, (), detail=detail, by_name=True)


def _returns_loss(node: ast.If) -> bool:
    """Return True for a side that returns a constant for which it asks for gradients."""
    end = node.body[-1]
    if not isinstance(end, ast.Return) or end.value is None:
        return False
    is_loss = "requires_grad=True" in "".join(map(ast.unparse, node.body))
    return is_loss and _is_constant(end.value, node.body)


def _is_model(names: SymbolTable, cls: Class) -> bool:
    return any(base in _MODULES for base in names.bases(cls) if isinstance(base, str))


def _skips_in(cls: Class, optional: Collection[str]) -> Iterator[Divergence]:
    for method in cls.node.body:
        if isinstance(method, ast.FunctionDef) and method.name in _METHODS:
            data = _data_names(method)
            parts = _submodules(cls.node)
            yield from _selected_parts(cls, method, parts)
            for node in walk_nodes(*method.body):
                if isinstance(node, ast.If) and _tests_batch(node.test, data, optional):
                    detail = _skipped(node, method, parts)
                    if detail:
                        at = SourceLine(cls.module.file, node.lineno, method.name)
                        text = f"if {ast.unparse(node.test)}"
                        yield Divergence(
                            "habit-branch", at, at, text, (), detail=detail, by_name=True
                        )


def _selected_parts(cls: Class, method: ast.FunctionDef, parts: set[str]) -> Iterator[Divergence]:
    """Yield a submodule of a dict that an argument of the method selects: ``self.heads[task]``."""
    parameters = {each.arg for each in (*method.args.args, *method.args.kwonlyargs)} - {"self"}
    for node in walk_nodes(*method.body):
        match node:
            case ast.Call(
                func=ast.Subscript(
                    value=ast.Attribute(value=ast.Name(id="self"), attr=name), slice=chosen
                )
            ) if name in parts and "ModuleDict" in ast.unparse(cls.node):
                key = chosen.value if isinstance(chosen, ast.Subscript) else chosen
                if isinstance(key, ast.Name) and key.id in parameters:
                    at = SourceLine(cls.module.file, node.lineno, method.name)
                    text = ast.unparse(node.func)
                    detail = (
                        f"`{text}` is the part that this rank's batch selects: the other parts get "
                        "no gradients here, and ranks that selected another one wait for them"
                    )
                    yield Divergence("habit-branch", at, at, text, (), detail=detail, by_name=True)
                    return
            case _:
                pass


def _data_names(method: ast.FunctionDef) -> set[str]:
    """Return the parameters of a method, and what it assigns from them."""
    names = {each.arg for each in (*method.args.args, *method.args.kwonlyargs)} - {"self"}
    for node in walk_nodes(*method.body):
        if isinstance(node, (ast.Assign, ast.For)):
            value = node.value if isinstance(node, ast.Assign) else node.iter
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _names(value) & names:
                names |= {name for target in targets for name in _names(target)}
    return names - {"self"}


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in walk(node) if isinstance(each, ast.Name)}


def _submodules(cls: ast.ClassDef) -> set[str]:
    """Return the attributes that a constructor sets to the result of a call."""
    return {
        target.attr
        for node in walk(cls)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    }


def _tests_batch(test: ast.expr, data: set[str], optional: Collection[str]) -> bool:
    """Return True for a test of how many elements of the batch there are, or whether it has a part.

    A parameter that may be None counts if it is one of the ``optional`` entries of a batch.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tests_batch(operand, data, optional)
        case ast.BoolOp(op=operator, values=values):
            chosen = isinstance(operator, ast.And) and any(map(_is_setting, values))
            return not chosen and any(_tests_batch(value, data, optional) for value in values)
        case ast.Compare(left=ast.Constant(value=str()), ops=[ast.In() | ast.NotIn()]):
            return any(map(_BATCH_NAME.search, _names(test) & data))
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant()]
        ):
            return name in data and name in optional
        case ast.Compare(left=left, ops=[_], comparators=[ast.Constant(value=int())]):
            return _counts(left, data)
        case _:
            return _counts(test, data)


def _is_setting(node: ast.expr) -> bool:
    """Return True for a setting of the model, which is equal on all ranks."""
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"


def _counts(node: ast.expr, data: set[str]) -> bool:
    """Return True for a number of elements: ``len(x)``, ``mask.sum()``, ``x.shape[0]``."""
    if not _names(node) & data:
        return False
    match node:
        case ast.Call(func=ast.Name(id="len" | "sum" | "any")):
            return True
        case ast.Call(func=ast.Attribute(value=inner, attr=method), args=arguments):
            if method == "item":
                return _counts(inner, data)
            return method in _COUNTS and (not arguments or method == "size")
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0)):
            return True
        case _:
            return False


def _skipped(node: ast.If, method: ast.FunctionDef, parts: set[str]) -> str:
    """Return what one side leaves out, as a message; empty if nothing."""
    yes, no = _called_parts(node.body, parts), _called_parts(node.orelse, parts)
    test = ast.unparse(node.test)
    ends = isinstance(node.body[-1], ast.Return)
    if ends:
        after = _after(node, method)
        no = _called_parts(after, parts)
        returned = node.body[-1].value if isinstance(node.body[-1], ast.Return) else None
        is_constant = returned is not None and _is_constant(returned, node.body)
        computed = {each for each in parts if f"self.{each}" in ast.unparse(method)}
        if is_constant and (no or method.name != "forward") and (computed or _calls_self(method)):
            return _CONSTANT_LOSS.format(test)
        if not yes and not no:
            return ""
    used = (yes - no) or (no - yes if ends else set())
    if not used or yes & no or (yes and no and not _tests_values(node.test)):
        return ""
    name = min(used)
    return (
        f"`self.{name}` runs only where this rank's batch decides so (`{test}`): the other ranks "
        "wait for its gradients (DDP) or parameters (FSDP)"
    )


def _tests_values(test: ast.expr) -> bool:
    """Return True for a test of what the batch contains, other than how large it is."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("any", "all")
        and not node.args
        for node in walk(test)
    )


def _after(node: ast.If, method: ast.FunctionDef) -> Sequence[ast.stmt]:
    return method.body[method.body.index(node) + 1 :] if node in method.body else ()


def _calls_self(method: ast.FunctionDef) -> bool:
    return "self(" in ast.unparse(method)


def _called_parts(block: Sequence[ast.stmt], parts: set[str]) -> set[str]:
    """Return the submodules that a block calls."""
    return {
        each.func.attr
        for each in walk_nodes(*block)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "self"
        and each.func.attr in parts
    }


def _is_constant(node: ast.expr, block: Sequence[ast.stmt]) -> bool:
    """Return True for a new tensor of constants, or a variable that holds one."""
    if isinstance(node, ast.Name):
        values = [
            each.value
            for each in block
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == node.id
        ]
        return len(values) == 1 and _is_constant(values[0], ())
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CONSTANTS
        and not any(isinstance(each, ast.Call) for each in node.args)
    )
