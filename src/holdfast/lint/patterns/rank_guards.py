"""Decide if all ranks run a line: tests, decorators and contexts around it and around its callers.

Decided by names: anything that may be a test of the rank counts as one, so that a line runs on all
ranks only if nothing suggests otherwise.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from holdfast.core.rank_table import SourceLine
from holdfast.lint.patterns.scopes import CodeScope, child_nodes, walk
from holdfast.lint.sources.modules import FUNCTIONS, Class, Module, SymbolTable, last_name
from holdfast.lint.sources.modules import Function as DefinedFunction

#: Words in a test that may make it one of the rank.
_RANK_TEST = re.compile(
    r"rank|(?<!__)main|master|zero|chief|primary|leader|coordinator|local|node|proc|device|gpu"
    r"|world|_only\b|is_dist|ddp|worker|rk\b",
    re.IGNORECASE,
)
#: Words of a variable that may hold the answer of such a test.
_DECISION = re.compile(r"should|^(?:save|write|dump|log)$|^(?:do|can|is)_", re.IGNORECASE)
_RANK_NAME = re.compile(
    r"rank|main_proc|on_main|only|master|worker|once|^prepare_data$", re.IGNORECASE
)
_SERIAL_CONTEXT = re.compile(r"first|lock|rank|main|te?mp|mutex|patch|raises", re.IGNORECASE)
#: What code does only if several ranks run it.
_DISTRIBUTED = re.compile(
    r"\bget_(?:global_)?rank\(|\bis_(?:main_process|global_zero|master|rank_zero)\b|\brank_zero"
    r"|\.global_rank\b|\brank0_|\bbarrier\(|\ball_(?:reduce|gather)|\bwait_for_everyone\("
    r"|\binit_process_group\(|\bDistributedDataParallel\b|\bAccelerator\("
    # Accelerate's object; torch's module of that name is for one process
    r"|\baccelerator\.(?:is_|wait_|gather|prepare|process_index|num_processes|unwrap|backward"
    r"|local_|main_|on_|reduce|print|accumulate|sync_|save)"
    r"|\bdcp\.(?:async_)?save\b|\bfully_shard\(|\.launch_from_torch\("
    r"|\brank\b *(?:==|!=|>) *0|\blocal_rank\b|\bget_world_size\(|\bDistributedSampler\("
)
_RANK_WORDS = (
    "rank", "is_main_process", "is_global_zero", "is_master", "barrier(", "all_reduce",
    "all_gather", "wait_for_everyone(", "init_process_group(", "DistributedDataParallel",
    "accelerator.", "Accelerator(", "dcp.", "fully_shard(", "launch_from_torch(",
    "get_world_size(", "DistributedSampler(",
)  # fmt: skip
#: Words of which a program with several ranks contains one.
DISTRIBUTED_WORDS = (
    "distributed", "ccelerat", "lightning", "composer", "deepspeed", "megatron", "Trainer", "trlx",
    "horovod", "local_rank",
)  # fmt: skip
#: A script that trains with a library which starts several ranks.
_TRAINING = re.compile(
    r"\b(?:import|from) (?:trlx?|transformers|lightning|pytorch_lightning|composer|colossalai)\b"
    r"[\s\S]*(?:\.train\(|\.fit\()"
)
_CALLBACK = re.compile(r"Callback|LightningModule|LightningDataModule")
#: A program that starts the ranks runs itself in one process.
_STARTS_RANKS = re.compile(r"\.spawn\(|notebook_launcher\(|Popen\(|ray\.remote")
#: A test of a variable of this name, and what binds it.
_BARE_RANK_TEST = re.compile(r"(?<![\w.])rank *(?:==|!=|>) *0")
_RANK_BINDING = re.compile(r"(?<![\w.])rank *(?:=(?!=)|[:,)])|\bimport\b[^\n]*\brank\b|import \*")
_LOCK_CALL = re.compile(r"(?:\b|_)(?:flock|lockf|lock|acquire)$")
_EXITS = (ast.Return, ast.Raise, ast.Continue)
#: Functions that take a function or class without calling it.
_NAME_USES = frozenset({"super", "isinstance", "issubclass", "getattr", "hasattr", "cast", "type"})
_MAX_CALLERS, _MAX_DEPTH = 20, 3
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False, slots=True)
class Unit:
    """A function, method or statement at the top level, with the parents of its nodes.

    ``rank_tests``: answers of :func:`is_rank_test`.
    """

    module: Module
    node: ast.stmt
    owner: ast.ClassDef | None
    nodes: list[ast.AST] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    rank_tests: dict[ast.expr, bool] = field(default_factory=dict)
    _assigned: dict[str, list[ast.expr]] | None = None

    def __post_init__(self) -> None:
        nodes, parents = self.nodes, self.parents
        stack: list[ast.AST] = [self.node]
        while stack:
            node = stack.pop()
            nodes.append(node)
            if isinstance(node, ast.Call):
                self.calls.append(node)
            children = child_nodes(node)
            for child in children:
                parents[child] = node
            children.reverse()
            stack += children

    def ancestors(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield pairs of an ancestor and its child towards the node, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent, node
            node = parent

    def function_of(self, node: ast.AST) -> Function | None:
        """Return the innermost function around a node."""
        for parent, _ in ((node, node), *self.ancestors(node)):
            if isinstance(parent, FUNCTIONS):
                return parent
        return None

    def location(self, node: ast.AST) -> SourceLine:
        """Return the source line of a node."""
        function = self.function_of(node)
        name = function.name if function is not None else "<module>"
        return SourceLine(self.module.file, getattr(node, "lineno", 0), name)

    def scope(self, symbols: SymbolTable) -> CodeScope:
        """Return the scope in which library names are resolved."""
        if isinstance(self.node, FUNCTIONS):
            return CodeScope(self.module, symbols, self.node, self.owner, self.nodes)
        return CodeScope(self.module, symbols, self.module.tree, None, self.nodes)

    def text(self, node: ast.stmt) -> str:
        """Return the source of a statement."""
        return "\n".join(self.module.lines[node.lineno - 1 : node.end_lineno])

    def assigned(self, name: str) -> list[ast.expr]:
        """Return the values assigned to a variable, or to an attribute in the whole class."""
        if name.startswith("self.") and self.owner is not None:
            return _assigned_in_class(self.owner).get(name, [])
        if self._assigned is None:
            self._assigned = _assigned_values(self.nodes)
        return self._assigned.get(name, [])


@lru_cache(maxsize=64)
def _assigned_in_class(owner: ast.ClassDef) -> dict[str, list[ast.expr]]:
    return _assigned_values(walk(owner))


def _assigned_values(nodes: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Return the values assigned to each variable and attribute."""
    values: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [
                ast.unparse(target)
                for target in targets
                if isinstance(target, (ast.Name, ast.Attribute))
            ]
            for name in dict.fromkeys(names):
                values.setdefault(name, []).append(node.value)
    return values


def iter_units(
    module: Module, words: re.Pattern[str] | str, known: dict[ast.stmt, Unit] | None = None
) -> Iterator[Unit]:
    """Yield the top-level statements and methods whose text contains one of the words.

    ``known`` holds the units built before.
    """
    lines: list[int] = []
    line, start = 1, 0
    for found in _offsets(module.text, words):
        line += module.text.count("\n", start, found)
        lines.append(line)
        start = found
    yield from iter_units_at(module, lines, known)


def iter_units_at(
    module: Module, lines: Sequence[int], known: dict[ast.stmt, Unit] | None = None
) -> Iterator[Unit]:
    """Yield the top-level statements and methods that contain one of these lines, in order."""
    if not lines:
        return
    stack: list[tuple[ast.stmt, ast.ClassDef | None]]
    stack = [(statement, None) for statement in module.tree.body]
    while stack:
        node, owner = stack.pop()
        at = bisect_left(lines, node.lineno)
        if at == len(lines) or lines[at] > (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.ClassDef):
            stack += [(statement, node) for statement in node.body]
        else:
            unit = known.get(node) if known is not None else None
            if unit is None:
                unit = Unit(module, node, owner)
                if known is not None:
                    known[node] = unit
            yield unit


def _offsets(text: str, words: re.Pattern[str] | str) -> Iterator[int]:
    pattern = re.escape(words) if isinstance(words, str) else words
    return (match.start() for match in re.finditer(pattern, text))


class RankGuards:
    """Answers if all ranks run a line of the program."""

    def __init__(self, modules: Collection[Module]) -> None:
        self._modules = [module for module in modules if not module.is_test]
        self._callers: dict[tuple[Module, str], list[tuple[Unit, ast.AST]]] = {}
        self._units: dict[ast.stmt, Unit] = {}
        self._distributed: dict[object, bool] = {}
        self._unused: dict[Function, bool] = {}
        self._caller_sites: dict[
            tuple[ast.AST | None, int, bool], tuple[bool, SourceLine | None]
        ] = {}

    def shared_site(
        self, unit: Unit, node: ast.AST, depth: int = 0, *, by_file: bool = False
    ) -> SourceLine | None:
        """Return the line of evidently distributed code from which all ranks run a node.

        This is the node's own line, or a call that leads to it. None: some ranks may not run it, or
        nothing shows that several ranks do. ``by_file``: words anywhere in the file show that.
        """
        function = unit.function_of(node)
        if _is_excluded(unit, node) or (
            function is not None and function is unit.node and self._is_unused(unit, function)
        ):
            return None
        site = unit.location(node) if self.is_distributed(unit, by_file=by_file) else None
        if function is None or depth == _MAX_DEPTH:
            return site
        return self._site_of_callers(unit, function, site, depth, by_file=by_file)

    def _site_of_callers(
        self,
        unit: Unit,
        function: Function,
        site: SourceLine | None,
        depth: int,
        *,
        by_file: bool,
    ) -> SourceLine | None:
        """Return the function's own site if no caller is guarded, else that of one that is not."""
        key = function, depth, by_file
        if key not in self._caller_sites:
            self._caller_sites[key] = False, None  # a recursive call adds nothing
            self._caller_sites[key] = self._examine_callers(unit, function, depth, by_file=by_file)
        guarded, calling_site = self._caller_sites[key]
        return calling_site if guarded or site is None else site

    def _examine_callers(
        self, unit: Unit, function: Function, depth: int, *, by_file: bool
    ) -> tuple[bool, SourceLine | None]:
        """Return if a caller is guarded, and the site of the first one that is not."""
        guarded = False
        calling_site = None
        for caller, call in self.callers(unit, function):
            calling = self.shared_site(caller, call, depth + 1, by_file=by_file)
            outer = self._caller_sites.get(
                (caller.function_of(call), depth + 1, by_file), (False, None)
            )
            guarded = (
                guarded
                or not isinstance(call, ast.Call)
                or _is_excluded(caller, call)
                or (calling is None and outer[0])
            )
            if isinstance(call, ast.Call) and means_function(caller, call, unit):
                calling_site = calling_site or calling
        return guarded, calling_site

    def _is_unused(self, unit: Unit, function: Function) -> bool:
        """Return True for a function that nothing mentions, beside others that programs call.

        What a fragment or a library offers is not called either, but nothing calls its neighbours.
        """
        if unit.owner is not None or function.decorator_list:
            return False
        if function not in self._unused:
            neighbours = [
                other.name
                for other in unit.module.tree.body
                if isinstance(other, FUNCTIONS) and other is not function
            ]
            self._unused[function] = not self._mentions(function) and any(
                module is not unit.module and f"{name}(" in module.text
                for name in neighbours
                for module in self._modules
            )
        return self._unused[function]

    def _mentions(self, function: Function) -> bool:
        """Return True if something outside a function mentions its name, comments apart."""
        word = re.compile(rf"\b{re.escape(function.name)}\b")
        definition = re.compile(rf"\bdef {re.escape(function.name)}\b")
        return any(
            word.search(line.partition("#")[0]) and not definition.search(line)
            for module in self._modules
            if function.name in module.text
            for line in module.lines
        )

    def is_distributed(self, unit: Unit, *, by_file: bool = False) -> bool:
        """Return True if the function or its class, or file, does what only several ranks do."""
        if by_file and _is_dataset(unit.owner):
            return True
        owner = unit.owner if unit.owner is not None else unit.node
        home: object = unit.module if by_file else owner
        if home not in self._distributed:
            text = unit.module.text
            self._distributed[home] = (
                _names_ranks(text, unit.module) or _TRAINING.search(text) is not None
                if by_file
                else _is_distributed(unit, owner)
            )
        return self._distributed[home]

    def callers(self, unit: Unit, function: Function) -> list[tuple[Unit, ast.AST]]:
        """Return the calls of a function or class by its name, and where it is passed on."""
        name = function.name
        if name == "__init__" and unit.owner is not None:
            name = unit.owner.name
        if name.startswith("__"):
            return []
        key = unit.module, name
        if key not in self._callers:
            self._callers[key] = list(self._find_callers(name, unit.module))
        return self._callers[key]

    def function_sorts(self, name: str) -> bool:
        """Return True if a function of this name sorts something itself."""
        header = f"def {name}("
        return any(
            unit.owner is not None or isinstance(unit.node, FUNCTIONS)
            for module in self._modules
            if header in module.text
            for unit in iter_units(module, header)
            if "sort" in unit.text(unit.node)
        )

    def _find_callers(self, name: str, home: Module) -> Iterator[tuple[Unit, ast.AST]]:
        count = 0
        for module in sorted(self._modules, key=lambda module: module is not home):
            if name not in module.text:
                continue
            for unit in iter_units(module, name, self._units):
                for node in unit.calls:
                    called = last_name(node.func)
                    if called == name:
                        yield unit, node
                        count += 1
                    elif called not in _NAME_USES:
                        passed = (*node.args, *(keyword.value for keyword in node.keywords))
                        for value in passed:
                            if (
                                isinstance(value, (ast.Name, ast.Attribute))
                                and last_name(value) == name
                            ):
                                yield unit, value
                if count > _MAX_CALLERS:
                    return


def _is_excluded(unit: Unit, node: ast.AST) -> bool:
    """Return True if some ranks may not run a node, or only the program that starts them."""
    function = unit.function_of(node)
    names = [] if function is None else [function.name, *map(ast.unparse, function.decorator_list)]
    return (
        is_guarded(unit, node)
        or any(map(_RANK_NAME.search, names))
        or _STARTS_RANKS.search(unit.text(unit.node)) is not None
    )


def means_function(caller: Unit, call: ast.Call, unit: Unit) -> bool:
    """Return True for a call that leaves little doubt that it means a function of this unit."""
    if isinstance(call.func, ast.Name):
        definition = caller.module.names.get(call.func.id)
        return (
            caller.node is unit.node
            or not isinstance(definition, (DefinedFunction, Class))
            or definition.module is unit.module
        )
    return ast.unparse(call.func).rpartition(".")[0] == "self" and caller.owner is unit.owner


def is_guarded(unit: Unit, node: ast.AST) -> bool:
    """Return True if a test, an earlier exit or a context may keep ranks from running a node."""
    for parent, child in unit.ancestors(node):
        match parent:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                if child is not test and is_rank_test(unit, test):
                    return True
            case ast.BoolOp(values=values):
                before = values[: values.index(child)] if isinstance(child, ast.expr) else []
                if any(is_rank_test(unit, value) for value in before):
                    return True
            case ast.With(items=items) | ast.AsyncWith(items=items):
                if any(_SERIAL_CONTEXT.search(ast.unparse(item.context_expr)) for item in items):
                    return True
            case _:
                pass
        if isinstance(child, ast.stmt) and _follows_exit(unit, parent, child):
            return True
    return False


def _follows_exit(unit: Unit, parent: ast.AST, child: ast.stmt) -> bool:
    """Return True if ranks leave the block or wait, by a test before or an assertion in it."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if not isinstance(block, list) or child not in block:
            continue
        before = block[: block.index(child)]
        asserted = (each for each in block if isinstance(each, ast.Assert))
        if any(_exits_by_rank(unit, each) for each in (*before, *asserted)) or any(
            isinstance(each, ast.If) and is_rank_test(unit, each.test) and _waits(each.body[-1])
            for each in before
        ):
            return True
    return False


def _exits_by_rank(unit: Unit, statement: ast.stmt) -> bool:
    """Return True if ranks leave the block at a statement, or in a test of another kind in it."""
    match statement:
        case ast.If(test=test, body=body, orelse=orelse):
            if is_rank_test(unit, test) and any(
                isinstance(end, _EXITS) for end in (body[-1], *orelse[-1:])
            ):
                return True
            return any(
                _exits_by_rank(unit, inner)
                for side in (body, orelse)
                if side and not isinstance(side[-1], _EXITS)
                for inner in side
            )
        case ast.Assert(test=test):
            return is_rank_test(unit, test)
        case ast.Expr(value=ast.Call(func=called)):  # ranks go one by one
            return _LOCK_CALL.search(last_name(called)) is not None
        case _:
            return False


def _waits(statement: ast.stmt) -> bool:
    """Return True for a barrier, by its name."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and "barrier" in last_name(statement.value.func)
    )


def is_rank_test(unit: Unit, test: ast.expr) -> bool:
    """Return True if a test, or what its names were assigned, may be a test of the rank."""
    if test not in unit.rank_tests:
        unit.rank_tests[test] = _may_test_rank(unit, test)
    return unit.rank_tests[test]


def _may_test_rank(unit: Unit, test: ast.expr) -> bool:
    if _RANK_TEST.search(ast.unparse(test)):
        return True
    for node in walk(test):
        if isinstance(node, (ast.Name, ast.Attribute)):
            values = unit.assigned(ast.unparse(node))
            if any(_RANK_TEST.search(ast.unparse(value)) for value in values):
                return True
            if not values and _DECISION.search(last_name(node)):
                return True
    return False


def _is_dataset(owner: ast.ClassDef | None) -> bool:
    """Return True for a dataset, which each rank creates."""
    return owner is not None and any("Dataset" in ast.unparse(base) for base in owner.bases)


def _names_ranks(text: str, module: Module) -> bool:
    # to search for words first takes a tenth of the time of the pattern
    if not any(word in text for word in _RANK_WORDS):
        return False
    if "rank" in text and not _RANK_BINDING.search(module.text):  # left over: never evaluated
        text = _BARE_RANK_TEST.sub("", text)
    return _DISTRIBUTED.search(text) is not None


def _is_distributed(unit: Unit, home: ast.stmt) -> bool:
    if _names_ranks(unit.text(home), unit.module):
        return True
    bases = unit.owner.bases if unit.owner is not None else []
    return any(_CALLBACK.search(ast.unparse(base)) for base in bases) and any(
        word in unit.module.text for word in DISTRIBUTED_WORDS
    )
