"""Find habits in modules for several ranks: roots, samplers, names, paths, exceptions, iterators.

The kind of each is ``habit-`` and what it concerns; ``detail`` is the message.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.devices import (
    habit,
    main_by_local_rank,
    swapped_ranks,
)
from holdfast.lint.patterns.by_name.local_values import LocalValues, is_wrapped
from holdfast.lint.patterns.by_name.names import (
    GROUP_KEYWORDS,
    RUNS_ONE_RANK,
    is_none,
    is_size_test,
    names_group,
)
from holdfast.lint.patterns.by_name.programs import NamedCollectives
from holdfast.lint.patterns.rank_guards import Unit, is_guarded, is_rank_test, iter_units
from holdfast.lint.patterns.scopes import LOOPS, argument, walk
from holdfast.lint.sources.modules import FUNCTIONS, Module, dotted_name, last_name

_WORDS = re.compile(
    r"\.(?:reduce|broadcast|gather|scatter)\("
    r"|DataLoader\(|time\(\)|now\(\)|uuid|strftime|all_reduce\(|except |StopIteration|Empty\b"
    r"|next\(|shuffle\(|new_group\(|RANK['\"]|local_rank|get_envs"
)
#: Rooted collectives, with the position and the names of the root.
_ROOTED = {
    "reduce": (1, "dst"),
    "broadcast": (1, "src"),
    "gather": (2, "dst"),
    "scatter": (2, "src"),
}
_PATH_NAME = re.compile(
    r"(?:dir|folder|path|exp_name|run_name|run_id|experiment|output_name|log_name|save_name"
    r"|timestamp|time_?str|checkpoint_name|ckpt_name)s?$",
    re.IGNORECASE,
)
#: Names of a time, which is not yet a path, and functions that make or take a path.
_TIME_NAME = re.compile(r"(?:timestamp|time_?str)s?$", re.IGNORECASE)
_BUILDS_PATH = re.compile(r"join|path|mkdir|makedirs|open|save", re.IGNORECASE)
_PROCESS_VALUE = re.compile(
    r"\btime\.(?:time|time_ns)\(\)|\btime\.strftime\(|datetime\.(?:now|utcnow|today)\(\)"
    r"|\buuid\.?\w*\(\)|\bstrftime\(|token_hex\(|\brandom\.randint\(|get_timestamp\(\)"
)
_OUT_OF_MEMORY = re.compile(r"out of memory|OutOfMemory")
_SHARDED_DATA = re.compile(
    r"shard|partition|rank|distributed|split_dataset_by_node|world_size|iterable|webdataset|wds|stream",
    re.IGNORECASE,
)
_PREPARES_LOADERS = re.compile(
    r"accelerator\.prepare|setup_dataloaders|LightningDataModule|LightningModule|prepare_data_loader"
    r"|deepspeed\.initialize\([^)]*training_data|DistributedSampler|DistSampler|dist_sampler"
)
_OWN_GROUP = re.compile(
    r"\b(?:pp|tp|dp|mp|ep|cp|sp|pipe|my|own)_?\w*(?:group|ranks)\b|get_process_group_ranks\("
)
#: The arguments of the groups that a module creates, and those of a group of all ranks.
_NEW_GROUP = re.compile(r"\bnew_group\(([^)]*)")
_OF_ALL_RANKS = re.compile(r"\s*(?:$|(?!ranks\b)\w+\s*=(?![\s\S]*\branks\s*=))")
_FROM_FIRST = re.compile(r"\brange\(0,")
_STARTS = re.compile(r"init_process_group\(|DistributedDataParallel\(|\bDDP\(|\binit_distributed")


def find_habits(
    collectives: NamedCollectives, module: Module, units: dict[ast.stmt, Unit]
) -> Iterator[Divergence]:
    """Yield the habits of a module."""
    if _WORDS.search(module.text) is None:
        return
    for unit in iter_units(module, _WORDS, units):
        yield from main_by_local_rank(unit)
        if isinstance(unit.node, FUNCTIONS) and any(
            RUNS_ONE_RANK.search(ast.unparse(decorator)) for decorator in unit.node.decorator_list
        ):
            continue
        for node in unit.nodes:
            yield from _habits_at(collectives, unit, node)


def _habits_at(collectives: NamedCollectives, unit: Unit, node: ast.AST) -> Iterator[Divergence]:
    match node:
        case ast.Call():
            for find in _CALL_HABITS.get(last_name(node.func), ()):
                yield from find(unit, node)
        case ast.Assign():
            yield from _own_name(unit, node)
            yield from swapped_ranks(collectives, unit, node)
        case ast.Try():
            yield from _tries(unit, node)
        case ast.While():
            yield from _ends_of_iterators(collectives, unit, node)
            yield from _ends_of_queues(collectives, unit, node)
        case _:
            pass


def _constant_root(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield rank 0 as root of a group that need not contain it."""
    position, name = _ROOTED[last_name(call.func)]
    root = argument(call, position, name)
    receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if (
        isinstance(root, ast.Constant)
        and root.value == 0
        and type(root.value) is int
        and re.search(r"dist(?:ributed)?$", receiver)
        and names_group(call)
        and not _contains_first_rank(unit, call)
    ):
        yield habit(
            unit,
            call,
            "root",
            f"{name}={root.value} is a rank of the whole job, which need not be in the group of "
            f"this {last_name(call.func)}: use group_{name}=0, or get_global_rank(group, 0)",
        )


def _contains_first_rank(unit: Unit, call: ast.Call) -> bool:
    """Return True if a group contains rank 0: made of all ranks, or of a range from 0."""
    group = next(item.value for item in call.keywords if item.arg in GROUP_KEYWORDS)
    values = unit.assigned(ast.unparse(group))
    members = [argument for value in values for argument in ast.walk(value)]
    texts = [
        ast.unparse(node)
        for member in members
        if isinstance(member, ast.Name)
        for node in (member, *unit.assigned(member.id))
    ]
    created = _NEW_GROUP.findall(unit.module.text)
    return any(map(_FROM_FIRST.search, [*map(ast.unparse, values), *texts])) or (
        bool(created) and all(map(_OF_ALL_RANKS.match, created))
    )


def _unsharded(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a loader without a distributed sampler, in a script that starts several ranks."""
    text = unit.module.text
    if not call.args and not call.keywords:
        return
    sampler = argument(call, 3, "sampler")
    keywords = {keyword.arg for keyword in call.keywords}
    if None in keywords or "batch_sampler" in keywords or is_guarded(unit, call):
        return
    if sampler is None or is_none(sampler):
        if _PREPARES_LOADERS.search(text) or not _STARTS.search(text):
            return
        data = argument(call, 0, "dataset")
        values = unit.assigned(ast.unparse(data)) if data is not None else []
        if any(_SHARDED_DATA.search(ast.unparse(node)) for node in (call, *values)):
            return
        yield habit(
            unit,
            call,
            "sampler",
            "this DataLoader has no DistributedSampler: every rank processes all data",
        )


def _own_name(unit: Unit, node: ast.Assign) -> Iterator[Divergence]:
    """Yield a path or name with the time, or a random number, of the rank's own process."""
    target = node.targets[0]
    text = ast.unparse(node.value)
    if (
        not isinstance(target, (ast.Name, ast.Attribute))
        or not _PATH_NAME.search(last_name(target))
        or not _PROCESS_VALUE.search(text)
        or re.search(r"broadcast|rank|temp|tmp", text)
        or any(
            isinstance(parent, ast.If) and is_rank_test(unit, parent.test)
            for parent, _ in unit.ancestors(node)
        )
    ):
        return
    name = ast.unparse(target)
    agreed = any(
        last_name(call.func) == "broadcast_object_list"
        or (
            re.search(r"broadcast|all_gather|gather_object", last_name(call.func))
            and any(last_name(target) in ast.unparse(value) for value in call.args)
        )
        for call in unit.calls
    )
    if not agreed and not (_TIME_NAME.search(name) and not _names_files(unit, target)):
        yield habit(
            unit,
            node,
            "name",
            f"`{name}` contains the time or a random number of this process: each rank may use "
            "another one; broadcast that of rank 0",
        )


def _names_files(unit: Unit, target: ast.Name | ast.Attribute) -> bool:
    """Return True if a time becomes part of a path, other than that of a log file."""
    name = ast.unparse(target)
    for node in unit.nodes:
        if not isinstance(node, (ast.Name, ast.Attribute)) or ast.unparse(node) != name:
            continue
        around = [parent for parent, _ in unit.ancestors(node)]
        is_path = any(
            (isinstance(parent, ast.Call) and _BUILDS_PATH.search(last_name(parent.func)))
            or (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div))
            or (isinstance(parent, ast.JoinedStr) and "/" in ast.unparse(parent))
            for parent in around
        )
        named = [
            last_name(parent.targets[0])
            for parent in around
            if isinstance(parent, ast.Assign)
            and isinstance(parent.targets[0], (ast.Name, ast.Attribute))
            and parent.targets[0] is not node
        ]
        if (is_path and not any("log" in each for each in named)) or any(
            _PATH_NAME.search(each) and not _TIME_NAME.search(each) for each in named
        ):
            return True
    return False


def _number(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a Python number that is reduced like a tensor."""
    reduced = argument(call, 0, "tensor")
    if not isinstance(reduced, ast.Name) or not re.search(
        r"(?:dist|distributed)\.all_reduce$", dotted_name(call.func)
    ):
        return
    function = unit.function_of(call)
    values = [value for value in unit.assigned(reduced.id) if unit.function_of(value) is function]
    added = [
        node.value
        for node in unit.nodes
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == reduced.id
    ]
    if values and all(map(_is_number, values)) and added and all(map(_is_number, added)):
        yield habit(
            unit, call, "argument", f"`{reduced.id}` is a Python number: all_reduce takes a tensor"
        )


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    return isinstance(node, ast.Call) and last_name(node.func) in ("len", "numel", "item", "int")


def _tries(unit: Unit, node: ast.Try) -> Iterator[Divergence]:
    """Yield handlers of a lack of memory that keep one rank running."""
    if not any(last_name(call.func) == "backward" for call in _calls_in(node.body)) and not (
        is_wrapped(unit.module.text) or "all_reduce" in unit.module.text
    ):
        return
    for handler in node.handlers:
        text = ast.unparse(handler)
        answered = _always_raises(handler.body) or _passes_on(unit, handler)
        if _OUT_OF_MEMORY.search(text) and not answered:
            test = next((node for node in handler.body if isinstance(node, ast.If)), handler)
            yield habit(
                unit,
                test,
                "except",
                "a rank that runs out of memory goes on here, while the "
                "others wait for it in the collectives of the step: agree on it, or raise",
            )


def _always_raises(block: list[ast.stmt]) -> bool:
    """Return True if the block raises, unless there is one rank only."""
    last = block[-1] if block else None
    if isinstance(last, ast.If):
        return (is_size_test(last.test) or _always_raises(last.body)) and _always_raises(
            last.orelse
        )
    return isinstance(last, ast.Raise)


def _passes_on(unit: Unit, handler: ast.ExceptHandler) -> bool:
    """Return True if a variable that the handler sets is an argument of a later call."""
    names = {
        target.id
        for statement in handler.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    return any(
        isinstance(value, ast.Name) and value.id in names
        for call in unit.calls
        if call.lineno > handler.lineno
        for value in call.args
    )


def _calls_in(block: list[ast.stmt]) -> Iterator[ast.Call]:
    for statement in block:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


def _own_members(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a group whose members each rank takes from a group of its own."""
    members = argument(call, 0, "ranks")
    if members is None or any(
        isinstance(parent, (*LOOPS, ast.ListComp)) for parent, _ in unit.ancestors(call)
    ):
        return
    texts = [ast.unparse(members)]
    for node in ast.walk(members):
        if isinstance(node, ast.Name):
            texts += map(ast.unparse, unit.assigned(node.id))
    if any(map(_OWN_GROUP.search, texts)):
        message = (
            "the members of this group are those of the rank's own group: ranks of other groups "
            "call new_group with other members; create the groups of all in one order"
        )
        yield habit(unit, call, "group", message)


def _ends_of_iterators(
    collectives: NamedCollectives, unit: Unit, loop: ast.While
) -> Iterator[Divergence]:
    """Yield loops of training that a rank leaves when its own iterator ends."""
    if not is_wrapped(unit.module.text) or not _leaves_at(loop, "StopIteration"):
        return
    trained = LocalValues(collectives, unit).training_in(loop.body)
    joined = re.search(r"\.join\b(?!\(['\"\w])|\bJoin\(", unit.text(unit.node))
    if trained is not None and not joined:
        message = (
            "a rank leaves the loop when its own iterator ends, and the others wait for it in the "
            f"collectives of {trained.name}"
        )
        yield habit(unit, loop, "loop", message)


def _ends_of_queues(
    collectives: NamedCollectives, unit: Unit, loop: ast.While
) -> Iterator[Divergence]:
    """Yield loops with a collective that a rank leaves when its own queue is empty at that time."""
    if not _leaves_at(loop, "Empty") or re.search(r"broadcast|agree", unit.text(unit.node)):
        return
    if is_guarded(unit, loop):
        return
    calls = (collectives.entered(unit.module, node) for node in walk(loop))
    entered = next((call for call in calls if call is not None), None)
    entered = entered or LocalValues(collectives, unit).training_in(loop.body)
    if entered is not None:
        message = (
            "a rank leaves the loop when its own queue is empty at that moment, and the others "
            f"wait for it in {entered.name}"
        )
        yield habit(unit, loop, "loop", message)


def _leaves_at(loop: ast.While, exception: str) -> bool:
    return any(
        isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and exception in ast.unparse(node.type)
        and isinstance(node.body[-1], ast.Break)
        for node in ast.walk(loop)
    )


def _is_seeded(unit: Unit, function: ast.expr) -> bool:
    """Return True for a method of a generator with a seed: ``random.Random(epoch).shuffle``."""
    receiver = function.value if isinstance(function, ast.Attribute) else function
    values = [receiver, *unit.assigned(ast.unparse(receiver))]
    return any(isinstance(value, ast.Call) and value.args for value in values)


def _own_shuffle(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield an unseeded shuffle of a list of which each rank then takes a share."""
    if "seed" in unit.module.text or not call.args or _is_seeded(unit, call.func):
        return
    text = ast.unparse(call.args[0])
    for node in unit.nodes:
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Slice)
            and ast.unparse(node.value) == text
            and re.search(r"rank|process_index", ast.unparse(node.slice))
            and node.lineno > call.lineno
        ):
            message = (
                f"each rank shuffles `{text}` in another order, and takes a share of it at line "
                f"{node.lineno}: shares overlap; shuffle with one seed"
            )
            yield habit(unit, call, "order", message)
            return


_CALL_HABITS: dict[str, tuple[Callable[[Unit, ast.Call], Iterator[Divergence]], ...]] = {
    "DataLoader": (_unsharded,),
    "all_reduce": (_number,),
    "shuffle": (_own_shuffle,),
    "new_group": (_own_members,),
    **dict.fromkeys(_ROOTED, (_constant_root,)),
}
