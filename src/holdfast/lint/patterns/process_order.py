"""Find orders and names that depend on the process: sets, sort keys that tie, ``hash``."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import Operation
from holdfast.lint.abstract_domain.values import TaintKind, TaintSource
from holdfast.lint.patterns.rank_guards import DISTRIBUTED_WORDS, RankGuards, Unit, iter_units
from holdfast.lint.sources.modules import Module, dotted_name, last_name

_WORDS = re.compile(r"\bset\(|\bhash\(|\brand(?:int|om)\b")
_RANDOM = re.compile(r"^(?:np\.|numpy\.)?random\.(?:randint|random|choice|getrandbits|rand)$")
_SHARED_NAME = re.compile(r"prefix|port|shm|path|dir|name|key|tag|run_id", re.IGNORECASE)
_SHARES = re.compile(r"broadcast|gather|scatter|seed\(")
_COLLECTIVE = re.compile(
    r"^(?:all_reduce|all_gather|broadcast|reduce_scatter|all_to_all|barrier|new_group)(?:_\w+)?$"
)
#: Functions of a program that probably enter a collective for each element.
_COLLECTIVE_OF_EACH = re.compile(r"reduce_(?:scatter_)?(?:grad|param)|sync_(?:grad|param)")
_ORDERED_WORDS = re.compile(rf"sorted\([^\n]*key=|{_COLLECTIVE_OF_EACH.pattern}")
_COPIES = frozenset({"list", "tuple", "iter", "enumerate"})
#: Maximum number of assignments through which a value is traced back.
_MAX_STEPS = 4
_TEXT_NAME = re.compile(
    r"(?:^|_)(?:name|word|token|path|file|text|url|key|title|sentence|line|string)s?$"
)
_TEXT_OF = frozenset({"str", "hex", "format"})


def find_process_orders(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield collectives in the order of a set, and names made from ``hash`` of a text."""
    if not any(word in module.text for module in modules for word in DISTRIBUTED_WORDS):
        return
    guards = RankGuards(modules)
    fixed_seed = any("PYTHONHASHSEED" in module.text for module in modules)
    for module in modules:
        if module.is_test:
            continue
        if any(word in module.text for word in ("set(", "hash(", "rand")):
            for unit in iter_units(module, _WORDS):
                if not fixed_seed:
                    yield from _hashed_names(guards, unit)
                    yield from _hashed_numbers(guards, unit)
                yield from _random_names(guards, unit)
            yield from _set_orders(guards, module)


def _set_orders(guards: RankGuards, module: Module) -> Iterator[Divergence]:
    if "set(" not in module.text or not _ORDERED_WORDS.search(module.text):
        return
    for unit in iter_units(module, _ORDERED_WORDS):
        for node in unit.nodes:
            if isinstance(node, ast.For):
                yield from _tied_order(unit, node)
            elif isinstance(node, ast.Call) and _COLLECTIVE_OF_EACH.search(last_name(node.func)):
                yield from _passed_sets(guards, unit, node)


def _passed_sets(guards: RankGuards, unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a set passed to a function that seems to enter a collective for each element."""
    name = last_name(call.func)
    for passed in call.args:
        if _is_set(unit, passed) and not guards.function_sorts(name):
            location, text = unit.location(passed), ast.unparse(passed)
            source = TaintSource(TaintKind.NAMED, location.file, location.line, text, by_name=True)
            operation = Operation(name, location)
            yield Divergence("order", location, location, text, (source,), operation)


def _tied_order(unit: Unit, loop: ast.For) -> Iterator[Divergence]:
    """Yield a loop with collectives over a set that is sorted by a key with equal values."""
    values = [loop.iter]
    if isinstance(loop.iter, ast.Name):
        values = unit.assigned(loop.iter.id)
    tied = any(
        isinstance(value, ast.Call)
        and last_name(value.func) == "sorted"
        and value.args
        and _is_set(unit, value.args[0])
        and any(keyword.arg == "key" and _ties(keyword.value) for keyword in value.keywords)
        for value in values
    )
    for node in ast.walk(loop) if tied else ():
        if isinstance(node, ast.Call) and _COLLECTIVE.match(last_name(node.func)):
            location = unit.location(loop)
            operation = Operation(last_name(node.func), unit.location(node))
            text = f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
            yield Divergence("order", location, location, text, (), operation)
            return


def _ties(key: ast.expr) -> bool:
    """Return True for a key that has few values, so that most elements are equal under it."""
    if isinstance(key, ast.Name):
        return key.id == "len"
    if not isinstance(key, ast.Lambda):
        return False
    body = key.body
    if isinstance(body, ast.IfExp):
        return isinstance(body.body, ast.Constant) and isinstance(body.orelse, ast.Constant)
    if isinstance(body, ast.Call):
        return last_name(body.func) in ("len", "startswith", "endswith", "isinstance")
    return isinstance(body, ast.Compare) or (
        isinstance(body, ast.UnaryOp) and isinstance(body.op, ast.Not)
    )


def _is_set(unit: Unit, node: ast.expr, depth: int = 0) -> bool:
    """Return True for a set, a list of it, or a variable or attribute that holds nothing else."""
    if isinstance(node, (ast.Set, ast.SetComp)) or depth == _MAX_STEPS:
        return depth < _MAX_STEPS
    if isinstance(node, ast.Call):
        name = dotted_name(node.func)
        if name in _COPIES and node.args:
            return _is_set(unit, node.args[0], depth + 1)
        return name in ("set", "frozenset")
    if isinstance(node, (ast.Name, ast.Attribute)):
        values = [
            value
            for value in unit.assigned(ast.unparse(node))
            if not (isinstance(value, ast.Call) and last_name(value.func) == "sorted")
        ]
        return bool(values) and all(
            not isinstance(value, (ast.Name, ast.Attribute)) and _is_set(unit, value, depth + 1)
            for value in values
        )
    return False


def _hashed_names(guards: RankGuards, unit: Unit) -> Iterator[Divergence]:
    """Yield ``hash`` in a text that all ranks build."""
    for node in unit.nodes:
        if isinstance(node, ast.Call) and dotted_name(node.func) == "hash" and node.args:
            parent = unit.parents.get(node)
            if isinstance(parent, ast.FormattedValue) or (
                isinstance(parent, ast.Call) and dotted_name(parent.func) in _TEXT_OF
            ):
                site = guards.shared_site(unit, node)
                function = unit.function_of(node)
                if site == unit.location(node) and not (
                    function is not None and function.name in ("__hash__", "__repr__", "__str__")
                ):
                    yield Divergence("hashed", site, site, ast.unparse(node), ())


def _hashed_numbers(guards: RankGuards, unit: Unit) -> Iterator[Divergence]:
    """Yield ``hash(name) % count`` in a program of several ranks: a bucket, share or id."""
    for node in unit.nodes:
        match node:
            case ast.BinOp(
                left=ast.Call(func=ast.Name(id="hash"), args=[hashed]), op=ast.Mod()
            ) if _is_text(hashed):
                pass
            case _:
                continue
        function = unit.function_of(node)
        if function is not None and function.name == "__hash__":
            continue
        if guards.shared_site(unit, node, by_file=True) is not None:
            at = unit.location(node)
            message = (
                f"`{ast.unparse(node)}` differs between processes, as Python hashes text with a "
                "key of its own in each: ranks use different numbers for one text; use hashlib or "
                "zlib.crc32"
            )
            yield Divergence("habit-order", at, at, "", (), detail=message, by_name=True)


def _is_text(node: ast.expr) -> bool:
    """Return True for text, by its form or by its name."""
    match node:
        case ast.JoinedStr() | ast.Constant(value=str()):
            return True
        case ast.Call(func=func):
            return last_name(func) in _TEXT_OF
        case ast.Name() | ast.Attribute():
            return _TEXT_NAME.search(last_name(node)) is not None
        case _:
            return False


def _random_names(guards: RankGuards, unit: Unit) -> Iterator[Divergence]:
    """Yield a random number from which all ranks make a name that they share, such as a prefix."""
    if _SHARES.search(unit.text(unit.node)):
        return
    for node in unit.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.JoinedStr):
            continue
        names = [part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)]
        drawn = [
            value
            for value in (*(v for name in names for v in unit.assigned(name)), node.value)
            for call in ast.walk(value)
            if isinstance(call, ast.Call) and _RANDOM.match(dotted_name(call.func))
        ]
        if drawn and _SHARED_NAME.search(ast.unparse(node.targets[0])):
            location = unit.location(node)
            if guards.shared_site(unit, node) == location:
                text = ast.unparse(node.value)
                yield Divergence("random-name", location, location, text, (), by_name=True)
