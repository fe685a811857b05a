"""Find exits by a rank's own data in front of collectives, judged by names.

The interpreter finds those of models and data that it has seen; here the name of a loss, batch or
mask, or a test that only tensors have, has to suffice. Saves of sharded models on one rank, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.patterns.one_rank_files import ONE_RANK
from holdfast.lint.patterns.rank_guards import Unit, iter_units
from holdfast.lint.patterns.scopes import LOOPS
from holdfast.lint.sources.modules import Module, last_name

_Loop = ast.For | ast.AsyncFor | ast.While
#: What shows that gradients are averaged over ranks.
_DATA_PARALLEL = (
    "DistributedDataParallel", "DDP(", "FSDP(", "FullyShardedDataParallel", "fully_shard(",
    "accelerator.prepare(", "deepspeed.initialize(", " DDP", " FSDP",
)  # fmt: skip
#: Words of which a unit with an exit to judge contains one.
_PREFILTER = ("backward(", "accelerator.", "fabric.", "dist.", "distributed.")
_EXIT_WORDS = re.compile(
    r"\bbackward\(|(?:accelerator|fabric|dist|distributed)\.(?:gather|all_|reduce|broadcast)"
)
_COLLECTIVE = re.compile(
    r"(?:^|\.)(?:accelerator\.(?:gather\w*|reduce|wait_for_everyone)|fabric\.(?:all_\w+|barrier)"
    r"|(?:dist|distributed)\.(?:all_\w+|broadcast\w*|reduce\w*|gather\w*|barrier))$"
)
#: Names of what belongs to the batch of a rank, and names of what does not.
_DATA_NAME = re.compile(
    r"(?:^|[._])(?:\w*loss|batch|inputs?|images?|labels?|targets?|masks?|boxes|samples?|tokens?"
    r"|logits|entropies|preds?|completions?|gt_?\w*)(?!\w)"
)
_SHARED_NAME = re.compile(r"grad|param|weight|norm|config|args|cfg|avg|mean|val|best|global|total")
_FINITE = re.compile(r"\b(?:isnan|isinf|isfinite)\(")
_EMPTY = re.compile(
    r"(?:\.(?:numel|nelement|any|all|sum|count_nonzero)\(\)|\.shape\[0\]|\.size\(0\))"
    r" *(?:[=<!]=? *[01]\b|$)"
    r"|^not .*\.(?:any|all)\(\)$|^len\([^()]*\) *(?:== *0|< *1)$|^not [\w.]+$|^[\w.]+ is None$"
)
_ABOVE = re.compile(r"^(?:[\w.]*loss\w*|float\([\w.]*loss\w*\))(?:\.item\(\))? *[<>]=? ")
#: A clock or a count of epochs without progress, which each rank has for itself.
_CLOCK = re.compile(r"(?:time|perf_counter|monotonic)\(\).*[<>]|[<>].*(?:time|monotonic)\(\)")
_STOPS = re.compile(r"early_?stop|patience|no_improve|should_stop", re.IGNORECASE)
_AGREED = re.compile(r"reduce|gather|broadcast|agree|sync")
_TRAINS = re.compile(r"^(?:backward|train\w*|run_epoch|training_step|train_step)$")
_EXITS = (ast.Return, ast.Continue, ast.Break)
#: Exceptions that one rank may have in its backward.
_CAUGHT = re.compile(r"^(?:Exception|BaseException|RuntimeError|(?:[\w.]+\.)?OutOfMemoryError)$")
#: What shows that a model may be sharded, and what selects or gathers its parts.
_SHARDED = re.compile(r"fsdp|fully_?shard|zero_?(?:stage|3)|is_deepspeed_zero3", re.IGNORECASE)
_GATHERED = re.compile(
    r"get_state_dict|summon_full_params|GatheredParameters|consolidate|state_dict_type|full_tensor"
    r"|StateDictOptions|_zero3_|get_model_state_dict|FULL_STATE_DICT"
)
_SELECTED = re.compile(r"fsdp|deepspeed|zero(?!_)|shard|lora|peft|adapter", re.IGNORECASE)
_SAVE_WORDS = re.compile(r"\b(?:save_pretrained|state_dict|save_model|save_checkpoint)\(")
_SAVERS = {
    "save_pretrained": re.compile(r"model"), "state_dict": re.compile(r"(?:^|\.)\w*model$"),
    "save_model": re.compile(r"trainer$"),
    "save_checkpoint": re.compile(r"engine$|model$|trainer$"),
}  # fmt: skip
#: Lightning's trainer saves with all ranks, whatever the strategy.
_LIGHTNING_SAVERS = {"save_checkpoint": re.compile(r"trainer$")}


def find_named_exits(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield exits that skip a backward or collective, and saves of sharded models on one rank."""
    parallel = any(word in module.text for module in modules for word in _DATA_PARALLEL)
    for module in modules:
        if module.is_test or ("torch" not in module.text and "accelerat" not in module.text):
            continue
        yield from _exits_in(module, parallel=parallel)
        if _SHARDED.search(module.text) or "ightning" in module.text:
            for unit in iter_units(module, _SAVE_WORDS):
                yield from _guarded_saves(unit)


# ---- exits


def _exits_in(module: Module, *, parallel: bool) -> Iterator[Divergence]:
    if any(word in module.text for word in _PREFILTER):
        for unit in iter_units(module, _EXIT_WORDS):
            yield from _exits(unit, parallel=parallel)
            if parallel:
                yield from _swallowed_failures(unit)
    if parallel and not _AGREED.search(module.text):
        for unit in iter_units(module, _STOPS):
            yield from _stops(unit)


def _exits(unit: Unit, *, parallel: bool) -> Iterator[Divergence]:
    flags = _local_flags(unit)
    for block in unit.nodes:
        if not isinstance(block, ast.If) or not isinstance(block.body[-1], _EXITS) or block.orelse:
            continue
        text = ast.unparse(block.test)
        if text not in flags and not (_is_local(text) and not _is_agreed(unit, block)):
            continue
        skipped = _skipped(unit, block, parallel=parallel)
        if skipped is not None:
            kind = "backward" if last_name(skipped.func) == "backward" else "collective"
            yield _exit(unit, block, text, skipped, kind)


def _exit(unit: Unit, block: ast.If, text: str, skipped: ast.Call, kind: str) -> Divergence:
    guard, location = unit.location(block), unit.location(skipped)
    source = TaintSource(TaintKind.NAMED, guard.file, guard.line, text, by_name=True)
    return Divergence(
        "exit",
        unit.location(block.body[-1]),
        guard,
        f"if {text}",
        (source,),
        Operation(last_name(skipped.func), location, kind=kind),
        (location,),
        type(block.body[-1]).__name__.lower(),
        by_name=True,
    )


def _stops(unit: Unit) -> Iterator[Divergence]:
    """Yield the end of training that a rank decides by its own evaluation or clock."""
    for block in unit.nodes:
        if (
            not isinstance(block, ast.If)
            or not isinstance(block.body[-1], ast.Break)
            or not _STOPS.search(text := ast.unparse(block.test))
        ):
            continue
        loop = next((node for node, _ in unit.ancestors(block) if isinstance(node, LOOPS)), None)
        trained = next(
            (
                node
                for part in (loop.body if loop is not None else ())
                for node in ast.walk(part)
                if isinstance(node, ast.Call) and _TRAINS.match(last_name(node.func))
            ),
            None,
        )
        if trained is not None:
            yield _exit(unit, block, text, trained, "backward")


def _swallowed_failures(unit: Unit) -> Iterator[Divergence]:
    """Yield a backward in a ``try`` whose handler goes on after an error that one rank may have."""
    for block in unit.nodes:
        if not isinstance(block, ast.Try) or block.finalbody:
            continue
        call = next(
            (
                node
                for part in block.body
                for node in ast.walk(part)
                if isinstance(node, ast.Call) and last_name(node.func) == "backward"
            ),
            None,
        )
        in_loop = any(isinstance(parent, LOOPS) for parent, _ in unit.ancestors(block))
        for handler in block.handlers if call is not None and in_loop else ():
            caught = ast.unparse(handler.type) if handler.type is not None else "Exception"
            if _CAUGHT.match(caught) and not _raises_always(handler.body) and call is not None:
                location = unit.location(call)
                operation = Operation("backward", location, kind="backward")
                yield Divergence(
                    "swallowed",
                    location,
                    unit.location(handler),
                    f"except {caught}",
                    (),
                    operation,
                    (location,),
                    by_name=True,
                )
                break


def _raises_always(body: Sequence[ast.stmt]) -> bool:
    """Return True if a handler cannot go on: it raises, or ends the process."""
    last = body[-1]
    if isinstance(last, ast.If) and last.orelse:
        return _raises_always(last.body) and _raises_always(last.orelse)
    return isinstance(last, ast.Raise) or "exit(" in ast.unparse(last)


def _is_local(text: str) -> bool:
    """Return True for a test of the data of one batch."""
    if _SHARED_NAME.search(text):
        return False
    if _FINITE.search(text) or _ABOVE.search(text) or _CLOCK.search(text):
        return True
    if not _EMPTY.search(text):
        return False
    names_tensor = re.search(r"\.(?:numel|nelement|any|all|count_nonzero)\(\)", text)
    return names_tensor is not None or _DATA_NAME.search(text) is not None


def _local_flags(unit: Unit) -> set[str]:
    """Return the variables that are set under a test of finiteness."""
    return {
        target.id
        for block in unit.nodes
        if isinstance(block, ast.If)
        and _FINITE.search(text := ast.unparse(block.test))
        and not _SHARED_NAME.search(text)
        for statement in block.body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _is_agreed(unit: Unit, block: ast.If) -> bool:
    """Return True if what is tested was combined over ranks, or passed in by a setting."""
    names = {ast.unparse(node) for node in ast.walk(block.test) if isinstance(node, ast.Name)}
    if any(_AGREED.search(ast.unparse(value)) for name in names for value in unit.assigned(name)):
        return True
    return any(
        call.lineno < block.lineno
        and _AGREED.search(last_name(call.func))
        and any(ast.unparse(arg) in names for arg in call.args)
        for call in unit.calls
    )


def _skipped(unit: Unit, block: ast.If, *, parallel: bool) -> ast.Call | None:
    """Return the backward or collective that the other ranks enter after the block."""
    function = unit.function_of(block)
    region: Sequence[ast.AST] = [function] if function is not None else [unit.node]
    first = block.end_lineno or block.lineno
    if not isinstance(block.body[-1], ast.Return):
        loop = next((node for node, _ in unit.ancestors(block) if isinstance(node, LOOPS)), None)
        if loop is None:
            return None
        region = loop.body
        first = loop.lineno if isinstance(block.body[-1], ast.Break) else first
    calls = [
        node
        for part in region
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and node.lineno > first
    ]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        if unit.function_of(call) is not function:
            continue
        name = ast.unparse(call.func)
        if _COLLECTIVE.search(name) or (parallel and last_name(call.func) == "backward"):
            return call
    return None


# ---- saves of sharded models


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
