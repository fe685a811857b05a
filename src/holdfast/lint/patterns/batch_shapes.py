"""Find gathers of tensors whose shape follows from the rank's own batch."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.sources.modules import FUNCTIONS, Module, last_name

_GATHER = re.compile(r"\b(?:gather|gather_for_metrics|all_gather_into_tensor)\(")
_GATHER_NAMES = frozenset({"gather", "gather_for_metrics"})
#: Modules that pad to a fixed length, or cut texts into blocks of one length.
_FIXED_LENGTH = re.compile(
    r"padding\s*=\s*['\"]max_length['\"]|pad_to_max_length|group_texts|block_size"
)
#: Inputs with a position for each token.
_TOKEN_INPUTS = re.compile(r"(?:^|_)(?:attention_mask|input_ids|token_type_ids|position_ids)$")
_LOGITS = re.compile(r"(?:^|_)logits$")
#: Modules in which logits have a position for each token.
_LANGUAGE_MODEL = re.compile(r"CausalLM|Seq2SeqLM|shift_logits|get_batch_logps|label_pad_token_id")
_SAME_SHAPE = frozenset({"detach", "contiguous", "cpu", "cuda", "float", "to", "clone", "long"})
_SELECTING = frozenset({"nonzero", "masked_select", "argwhere"})


def find_batch_shapes(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield gathers of tensors that are padded per batch, or selected by a mask."""
    padding: dict[str, set[str]] = {}
    for module in modules:
        if "pad_sequence(" in module.text:
            padding |= dict(_padding_functions(module))
    for module in modules:
        if module.is_test or "torch" not in module.text or "gather" not in module.text:
            continue
        padded = {key for name, keys in padding.items() if name in module.text for key in keys}
        for unit in iter_units(module, _GATHER):
            if "pad_across_processes" in unit.text(unit.node):
                continue
            for node in unit.nodes:
                if isinstance(node, ast.Call):
                    yield from _gathered(unit, node, padded)


def _padding_functions(module: Module) -> Iterator[tuple[str, set[str]]]:
    """Yield the functions that pad to the longest text of a batch, with the keys of the tensors."""
    for unit in iter_units(module, "pad_sequence("):
        keys = {
            key.value
            for node in unit.nodes
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
            and isinstance(key.value, str)
            and any(map(_pads_batch, [value, *_assigned_values(unit, value)]))
        }
        if isinstance(unit.node, FUNCTIONS) and keys:
            yield unit.node.name, keys


def _assigned_values(unit: Unit, node: ast.expr) -> list[ast.expr]:
    return unit.assigned(node.id) if isinstance(node, ast.Name) else []


def _pads_batch(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) == "pad_sequence"


def _gathered(unit: Unit, call: ast.Call, padded: Collection[str]) -> Iterator[Divergence]:
    """Yield the divergence of a gather by an accelerator or by torch.distributed."""
    name = last_name(call.func)
    receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name in _GATHER_NAMES and re.search(r"accelerator$|fabric$", receiver):
        passed = call.args[:1]
    elif name == "all_gather_into_tensor" and receiver:
        passed = call.args[1:2]
    else:
        return
    for value in _elements(passed):
        inner = _same_shape(value)
        location = unit.location(call)
        if _is_padded(unit, inner) or any(
            isinstance(each, ast.Subscript)
            and isinstance(each.slice, ast.Constant)
            and each.slice.value in padded
            for each in map(_same_shape, [inner, *_assigned_values(unit, inner)])
        ):
            yield Divergence("padded", location, location, ast.unparse(inner), ())
        elif _is_selected(unit, inner):
            text = ast.unparse(inner)
            source = TaintSource(TaintKind.DATA, location.file, location.line, text)
            yield Divergence("shape", location, location, name, (source,))


def _elements(values: list[ast.expr]) -> Iterator[ast.expr]:
    for value in values:
        if isinstance(value, (ast.Tuple, ast.List)):
            yield from value.elts
        else:
            yield value


def _same_shape(node: ast.expr) -> ast.expr:
    """Return the tensor before conversions that keep its shape."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _SAME_SHAPE
    ):
        node = node.func.value
    return node


def _is_padded(unit: Unit, node: ast.expr) -> bool:
    """Return True for a tensor with the length of the longest text in the batch, by its name."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = str(node.slice.value)
    elif isinstance(node, (ast.Name, ast.Attribute)):
        name = last_name(node)
    else:
        return False
    text = unit.module.text
    if _FIXED_LENGTH.search(text):
        return False
    if _LOGITS.search(name) and _LANGUAGE_MODEL.search(text):
        values = unit.assigned(name) if isinstance(node, ast.Name) else []
        return not any(isinstance(value, (ast.Call, ast.Subscript)) for value in values)
    return _TOKEN_INPUTS.search(name) is not None


def _is_selected(unit: Unit, node: ast.expr) -> bool:
    """Return True for the elements that a mask or a test selects."""
    values = [node]
    if isinstance(node, ast.Name):
        values = unit.assigned(node.id)
        if len(values) != 1:
            return False
    value = _same_shape(values[0]) if values else node
    if isinstance(value, ast.Call):
        return last_name(value.func) in _SELECTING
    if not isinstance(value, ast.Subscript):
        return False
    mask = value.slice
    if isinstance(mask, ast.Name):
        assigned = unit.assigned(mask.id)
        return len(assigned) == 1 and _is_comparison(assigned[0])
    return _is_comparison(mask)


def _is_comparison(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        node = node.operand
    if isinstance(node, ast.ListComp):
        return any(generator.ifs for generator in node.generators)
    return isinstance(node, ast.Compare) and not isinstance(node.ops[0], (ast.In, ast.NotIn))
