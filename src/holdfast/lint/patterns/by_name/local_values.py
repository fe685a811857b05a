"""Values of a rank's own, by their names, unless the function agrees on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache

from holdfast.lint.patterns.by_name.names import is_rank_test, is_size_test
from holdfast.lint.patterns.by_name.programs import EnteredCall, NamedCollectives
from holdfast.lint.patterns.rank_guards import Unit
from holdfast.lint.patterns.scopes import child_nodes, walk
from holdfast.lint.sources.modules import FUNCTIONS, last_name

#: A test of a batch, a loss or a clock.
_LOCAL = re.compile(
    r"(?:\bis_?nan|\bisfinite|\bis_?inf)\(|\bmath\.is(?:nan|inf)"
    r"|\b(?:mask|masks|valid|keep|labels?|targets?)\w*(?:\.\w+\(\))*\.(?:any|all|sum|numel)\(\)"
    r"|\blen\((?:\w+\.)*(?:batch|samples?|inputs?|data|boxes|targets?|labels|losses|processes"
    r"|child_processes|gt_\w+|losses|texts?|examples|items|indices|idxs?)\w*\) *(?:(?:==|>"
    r"|!=) *0\b|< *1\b|$)"
    r"|\bnot (?:\w+\.)*(?:batch|samples?|losses"
    r"|valid_(?!data|set|loader|dl\b|iter|split)\w+)$"
    r"|\b(?:batch|samples?|loss) is None\b"
    r"|(?:loss|kl|policykl|perplexity|grad_?norm|val_acc\w*|accuracy|patience\w*)\b\w*['\"\]\)]*"
    r"(?:\.item\(\))? *(?:>|<|>=|<=) "
    r"|time\.(?:time|monotonic|perf_counter)\(\) *(?:-|>)|\belapsed\w* *(?:>|>=) "
    r"|\b(?:num|n)_(?:pos|valid|gts?|boxes|fg|instances|targets|labels|masks|objects)\w*"
    r" *(?:==|<|>|<=|>=) *\d",
)
_AGREED = re.compile(
    r"all_?reduce|all_?gather|broadcast|reduce|gather|sync|barrier|agree|global|any_rank|across",
    re.IGNORECASE,
)
#: A test by which training ends early.
_STOPS = re.compile(
    r"early_?stop(?!ping\b)|early_stopping\.|\bpatience|no_improve|bad_epochs|should_stop"
    r"|stop_training|\bstop(?:per)?\b",
    re.IGNORECASE,
)
_WRAPPED = re.compile(
    r"DistributedDataParallel|\bDDP\(|accelerator\.(?:backward|prepare|accumulate)|fully_shard"
    r"|FullyShardedDataParallel|deepspeed\.initialize|model_engine\.backward|self\.engine\.backward"
    r"|self\.model\.backward\("
    r"|\.no_sync\("
)


@lru_cache(maxsize=8)
def is_wrapped(text: str) -> bool:
    """Return True if a module's text wraps a model for several ranks."""
    return _WRAPPED.search(text) is not None


#: A module that wraps the model, and a function that takes the wrapped one apart.
_WRAPS = re.compile(r"DistributedDataParallel\(|\bDDP\(|FullyShardedDataParallel\(|\bFSDP\(")
_UNWRAPS = re.compile(r"\.module\b|unwrap|without_ddp|raw_model|ema")
_MODEL = re.compile(r"^(?:ddp_|fsdp_)?(?:model|net|network)$")
_EVALUATES = re.compile(r"^(?:evaluat|validat|test_|test$|run_(?:val|eval)|infer|sample|generate)")


class LocalValues:
    """The values of a function that each rank has for itself."""

    def __init__(self, collectives: NamedCollectives, unit: Unit) -> None:
        self._collectives = collectives
        self._unit = unit
        self._agreeing: list[tuple[int, set[str]]] | None = None

    def is_local(self, test: ast.expr) -> bool:
        """Return True for a test of a rank's own data that no collective has made equal."""
        if isinstance(test, ast.Name):
            return self._is_flag(test)
        text = ast.unparse(test)
        if not _LOCAL.search(text) or is_size_test(test) or _AGREED.search(text):
            return False
        return not any(
            self._is_agreed(node.id, test.lineno)
            for node in walk(test)
            if isinstance(node, ast.Name) and node.id != "self"
        )

    def _is_flag(self, name: ast.Name) -> bool:
        """Return True for a variable that is set to a constant under such a test."""
        function = self._unit.function_of(name)
        return not self._is_agreed(name.id, name.lineno) and any(
            isinstance(value, ast.Constant)
            and self._unit.function_of(value) is function
            and isinstance(parent, ast.If)
            and not isinstance(parent.test, ast.Name)
            and self.is_local(parent.test)
            for value in self._unit.assigned(name.id)
            for parent, _ in self._unit.ancestors(value)
        )

    def _is_agreed(self, name: str, line: int) -> bool:
        """Return True if before the line a collective seems to get or to give the variable."""
        if self._agreeing is None:
            self._agreeing = [
                (call.lineno, _argument_names(call))
                for call in self._unit.calls
                if _AGREED.search(last_name(call.func))
            ]
        if any(at < line and name in names for at, names in self._agreeing):
            return True
        return any(
            _AGREED.search(ast.unparse(value)) or self._agrees(value)
            for value in self._unit.assigned(name)
            if value.lineno < line
        )

    def _agrees(self, node: ast.expr) -> bool:
        """Return True for a call of a function that enters a collective which gives a result."""
        entered = self._collectives.entered(self._unit.module, node)
        return entered is not None and "barrier" not in entered.name

    def stops_training(self, test: ast.expr) -> bool:
        """Return True for a test that ends training early, by a value of the rank's own."""
        text = ast.unparse(test)
        return (
            _STOPS.search(text) is not None
            and not _AGREED.search(self._unit.text(self._unit.node))
            and not is_size_test(test)
            and not any(
                call.lineno < test.lineno and self._agrees(call) for call in self._unit.calls
            )
        )

    def is_decided_by_one(self, test: ast.expr, one_sided: frozenset[str]) -> bool:
        """Return True for a test of a variable that only the ranks of a rank test assign."""
        function = self._unit.function_of(test)
        for node in walk(test):
            if not isinstance(node, ast.Name) or self._is_agreed(node.id, test.lineno):
                continue
            values = [
                value
                for value in self._unit.assigned(node.id)
                if self._unit.function_of(value) is function
            ]
            own = [value for value in values if self._is_under_rank_test(value, one_sided)]
            if (
                own
                and any(value.lineno < test.lineno for value in own)
                and all(
                    value in own or isinstance(value, (ast.Constant, ast.UnaryOp))
                    for value in values
                )
                and len(own) < len(values)
            ):
                return True
        return False

    def _is_under_rank_test(self, node: ast.AST, one_sided: frozenset[str]) -> bool:
        return any(
            isinstance(parent, ast.If)
            and child is not parent.test
            and is_rank_test(parent.test, one_sided)
            for parent, child in self._unit.ancestors(node)
        )

    def is_own_list(self, test: ast.expr) -> bool:
        """Return True for a test whether a list that the function fills has elements."""
        match test:
            case ast.Compare(left=ast.Call(args=[inner]) as call) if last_name(call.func) == "len":
                test = inner
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                test = operand
            case _:
                pass
        if not isinstance(test, ast.Name) or self._is_agreed(test.id, test.lineno):
            return False
        values = self._unit.assigned(test.id)
        return (
            bool(values)
            and all(isinstance(value, ast.List) and not value.elts for value in values)
            and any(
                isinstance(call.func, ast.Attribute)
                and call.func.attr in ("append", "extend")
                and last_name(call.func.value) == test.id
                and self._is_under_test(call)
                for call in self._unit.calls
            )
        )

    def _is_under_test(self, node: ast.AST) -> bool:
        return any(isinstance(parent, ast.If) for parent, _ in self._unit.ancestors(node))

    def training_in(self, nodes: Sequence[ast.AST]) -> EnteredCall | None:
        """Return the first backward pass of a wrapped model in these nodes."""
        module = self._unit.module
        if not is_wrapped(module.text):
            return None
        stack: list[ast.AST] = list(reversed(nodes))
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Call) and self._collectives.trains(node):
                return EnteredCall(node, last_name(node.func), module, node.lineno)
            if not isinstance(node, FUNCTIONS):
                stack.extend(reversed(child_nodes(node)))
        return None

    def forward_in(self, block: Sequence[ast.stmt]) -> EnteredCall | None:
        """Return the first evaluation of a model that the module wraps and does not unwrap."""
        module = self._unit.module
        if not _WRAPS.search(module.text) or _UNWRAPS.search(self._unit.text(self._unit.node)):
            return None
        for statement in block:
            for node in walk(statement):
                if isinstance(node, ast.Call) and _is_forward(node):
                    name = last_name(node.func)
                    return EnteredCall(node, name, module, node.lineno, kind="forward")
        return None


def _argument_names(call: ast.Call) -> set[str]:
    return {
        node.id
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        for node in walk(argument)
        if isinstance(node, ast.Name)
    }


def _is_forward(call: ast.Call) -> bool:
    name = last_name(call.func)
    passed = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(passed) and (
        _MODEL.match(name) is not None
        or (
            _EVALUATES.search(name) is not None
            and any(
                isinstance(value, (ast.Name, ast.Attribute)) and _MODEL.match(last_name(value))
                for value in passed
            )
        )
    )
