"""Find saves of sharded models that one rank makes, by the names of strategies and models."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.sources.modules import Module, last_name

#: A test that one rank passes, at least of each node.
ONE_RANK = re.compile(
    r"rank\w*(?:\(\w*\))? *(?:==|<=) *0|rank\w* in [\[(](?:-1, 0|0, -1)[\])]|is_(?:\w*_)?main"
    r"|is_master|global_zero|is_rank_?(?:0|zero)|process_zero|should_save"
)
#: What shows that a model may be sharded, and what selects or gathers its parts.
_SHARDED = re.compile(r"fsdp|fully_?shard|zero_?(?:stage|3)|is_deepspeed_zero3", re.IGNORECASE)
_GATHERED = re.compile(
    r"get_state_dict|summon_full_params|GatheredParameters|consolidate|state_dict_type|full_tensor"
    r"|StateDictOptions|_zero3_|get_model_state_dict|FULL_STATE_DICT"
)
_SELECTED = re.compile(
    r"fsdp|deepspeed|(?<!process_)(?<!global_)(?<!rank_)zero(?!_)|shard|lora|peft|adapter",
    re.IGNORECASE,
)
_SAVE_WORDS = re.compile(r"\b(?:save_pretrained|state_dict|save_model|save_checkpoint)\(")
_SAVERS = {
    "save_pretrained": re.compile(r"model"),
    "state_dict": re.compile(r"(?:^|\.)\w*model(?:_wrapped)?$"),
    "save_model": re.compile(r"trainer$"),
    "save_checkpoint": re.compile(r"engine$|model$|trainer$"),
}
#: Lightning's trainer saves with all ranks, whatever the strategy.
_LIGHTNING_SAVERS = {"save_checkpoint": re.compile(r"trainer$")}

#: What shows that Accelerate's models are whole on each rank: each of several is prepared by
#: itself, which DeepSpeed does not offer, or a method of the inner module is called, which does
#: not gather the parameters. A loop over models that may be one needs a call of one of several.
_WHOLE_MODELS = re.compile(
    r"\[\w+\] = (?:self\.)?accelerator\.prepare_model\("
    r"|model\.module\.(?!state_dict|save|load|parameters|generate|config|named_)\w+\("
)
_PREPARED_MODELS = re.compile(r"models?\[\w+\] = (?:self\.)?accelerator\.prepare\(")
_CALLED_MODEL = re.compile(r"models?\[[\"']\w+[\"']\]\(")
#: Calls of Accelerate that are collectives only if the model is sharded.
_STATE_CALLS = frozenset({"save_state", "load_state", "get_state_dict"})


def saves_whole_models(module: Module, name: str, line: int) -> bool:
    """Return True for a call of Accelerate in a class whose models cannot be sharded."""
    if name not in _STATE_CALLS:
        return False
    for owner in module.tree.body:
        end = getattr(owner, "end_lineno", None) or line
        if isinstance(owner, ast.ClassDef) and owner.lineno <= line <= end:
            text = "\n".join(module.lines[owner.lineno - 1 : end])
            return _WHOLE_MODELS.search(text) is not None or (
                _PREPARED_MODELS.search(text) is not None and _CALLED_MODEL.search(text) is not None
            )
    return False


def find_sharded_saves(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield saves under a test that one rank passes."""
    for module in modules:
        if module.is_test or not any(f"{name}(" in module.text for name in _SAVERS):
            continue
        if _SHARDED.search(module.text) or "ightning" in module.text:
            for unit in iter_units(module, _SAVE_WORDS):
                yield from _guarded_saves(unit)


def _guarded_saves(unit: Unit) -> Iterator[Divergence]:
    if _GATHERED.search(unit.text(unit.node)):
        return
    savers = _SAVERS if _SHARDED.search(unit.module.text) else _LIGHTNING_SAVERS
    for call in unit.calls:
        receiver = savers.get(last_name(call.func))
        if receiver is None or not isinstance(call.func, ast.Attribute):
            continue
        if not receiver.search(ast.unparse(call.func.value)) or any(
            keyword.arg in ("state_dict", None) for keyword in call.keywords
        ):
            continue
        guard = _one_rank_test(unit, call)
        if guard is not None:
            location, text = unit.location(call), ast.unparse(guard.test)
            source = TaintSource(TaintKind.RANK, location.file, guard.lineno, text, by_name=True)
            yield Divergence(
                "branch",
                location,
                unit.location(guard),
                f"if {text}",
                (source,),
                Operation(last_name(call.func), location, kind="sharded", may_not_wait=True),
                (location,),
                by_name=True,
            )


def _one_rank_test(unit: Unit, call: ast.Call) -> ast.If | None:
    """Return the test that one rank passes; None if a test around it is of the kind of model."""
    found = None
    for parent, child in unit.ancestors(call):
        if isinstance(parent, ast.If):
            text = ast.unparse(parent.test)
            if _SELECTED.search(text):
                return None
            if found is None and child in parent.body and ONE_RANK.search(text):
                found = parent
    return found
