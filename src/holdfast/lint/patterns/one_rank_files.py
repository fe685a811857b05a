"""Find files that one rank, or the ranks of one turn, change while the others use them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.rank_guards import RankGuards, Unit, is_guarded
from holdfast.lint.patterns.scopes import argument
from holdfast.lint.patterns.shared_names import is_shared_path
from holdfast.lint.sources.modules import dotted_name, last_name

#: A test that one rank passes, at least of each node.
ONE_RANK = re.compile(
    r"rank\w*(?:\(\w*\))? *(?:==|<=) *0|rank\w* in [\[(](?:-1, 0|0, -1)[\])]|is_(?:\w*_)?main"
    r"|is_master|global_zero|is_rank_?(?:0|zero)|process_zero|should_save"
)
#: Calls that no rank waits in.
NEVER_WAITS = re.compile(
    r"^(?:(?:\w+\.)*print|len|str|int|float|range|isinstance|getattr|hasattr|dict|list|sorted|min"
    r"|max|sum|enumerate|Path|(?:self\.)?log\w*\.\w+|os(?:\.\w+)+|shutil\.\w+|json\.\w+|time\.\w+"
    r"|logging\.\w+|warnings\.warn|torch\.save|torch\.device|datetime(?:\.\w+)+|open"
    r"|\w+\.(?:format|join|append|items|keys|values|get|joinpath|exists|is_dir|is_file|write"
    r"|mkdir|write_text|read_text|strip|split|detach|cpu|item))$"
)
WAITING_NAME = re.compile(
    r"barrier|wait|synchroni|block_all|broadcast|all_reduce|all_gather|reduce_|gather|sync"
)
_MAKES_FOLDER = frozenset({"makedirs", "mkdir", "rmtree"})
_WRITES_INTO = re.compile(r"^(?:save|dump|write|to_csv|to_json|export|torch\.save|open$|copy)")
#: A context in which one rank goes first.
_IN_TURN = re.compile(r"first\b|first\(|_first")
#: A test of a rank among those that share the model or the data; others of the world pass, too.
_GROUP_RANK = re.compile(
    r"(data_parallel|tensor\w*_parallel|pipeline\w*_parallel|context_parallel|expert\w*_parallel"
    r"|[dtpce]p)_(?:local_)?rank\w*(?:\(\))? *== *0"
)
_ANY_RANK = re.compile(r"(\w*)rank\b|is_(?:\w*_)?main|master|get_rank|zero", re.IGNORECASE)


class OneRankFiles:
    """Search in one function or method."""

    def __init__(self, guards: RankGuards, unit: Unit) -> None:
        self._guards = guards
        self._unit = unit

    def removed(self, call: ast.Call, name: str, path: ast.expr) -> Iterator[Divergence]:
        """Yield the divergences of a call that removes a path."""
        if name in ("shutil.rmtree", "os.removedirs"):
            yield from self._folder_removed(call, path)
        yield from self._removed_in_turn(call, path)

    def written(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        """Yield a write under a test that several ranks pass: ``rank <= 1``, ``dp_rank == 0``."""
        tests = [
            parent
            for parent, child in self._unit.ancestors(call)
            if isinstance(parent, ast.If) and child in parent.body
        ]
        for block in tests:
            if _admits_two(block.test):
                yield self._divergence("admitted", block, call, path)
        if tests and self._is_of_one_group(tests) and _is_written_by_name(call):
            yield self._divergence("group", call, call, path)

    def prepared(self, block: ast.If, calls: list[ast.Call]) -> Iterator[Divergence]:
        """Yield a folder that one rank makes or removes, and that all write to right after."""
        if _leaves(block):
            return
        made = {
            ast.unparse(path): inner
            for inner in ast.walk(ast.Module(block.body, []))
            if isinstance(inner, ast.Call) and last_name(inner.func) in _MAKES_FOLDER
            if isinstance(path := _folder_of(inner), (ast.Name, ast.Attribute))
        }
        end, function = block.end_lineno or 0, self._unit.function_of(block)
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)) if made else ():
            name = dotted_name(call.func)
            if call.lineno <= end or self._unit.function_of(call) != function:
                continue
            if WAITING_NAME.search(last_name(call.func)):
                return
            text = _used_path(call, made)
            if text and _WRITES_INTO.match(last_name(call.func)) and _may_write(call):
                path = _folder_of(made[text])
                if (
                    path is not None
                    and not is_guarded(self._unit, call)
                    and self._guards.shared_site(self._unit, call) is not None
                ):
                    yield self._divergence("unready", call, made[text], path)
                return
            if not NEVER_WAITS.match(name):
                return

    def _divergence(self, kind: str, node: ast.AST, guard: ast.AST, path: ast.expr) -> Divergence:
        unit = self._unit
        return Divergence(kind, unit.location(node), unit.location(guard), ast.unparse(path), ())

    def _folder_removed(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        """Yield a folder that one rank removes right after all ranks wrote or removed files."""
        unit = self._unit
        if not is_guarded(unit, call):
            return
        blocks = {id(parent): child for parent, child in unit.ancestors(call)}
        for other in unit.calls:
            if (
                other.lineno >= call.lineno
                or is_guarded(unit, other)
                or not _touches_file(other)
                or _exclude_each_other(unit, other, blocks)
            ):
                continue
            waits = any(
                other.lineno < node.lineno <= call.lineno
                and WAITING_NAME.search(last_name(node.func))
                for node in unit.calls
            )
            if not waits and self._guards.is_distributed(unit):
                yield self._divergence("folder", call, other, path)
                return

    def _removed_in_turn(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        """Yield what each rank removes in its turn, although the first one may go on to make it."""
        unit = self._unit
        turn = next(
            (
                parent
                for parent, _ in unit.ancestors(call)
                if isinstance(parent, ast.With)
                and any(_IN_TURN.search(ast.unparse(item.context_expr)) for item in parent.items)
            ),
            None,
        )
        if turn is None:
            return
        text, end = ast.unparse(path), turn.end_lineno or 0
        later = [node for node in unit.calls if node.lineno > end]
        if any(_used_path(node, {text}) for node in later) and is_shared_path(
            self._guards, unit, path
        ):
            yield self._divergence("turn", call, turn, path)

    def _is_of_one_group(self, tests: list[ast.If]) -> bool:
        """Return True if the tests are of a rank in one of several groups, and of no other."""
        text = " and ".join(ast.unparse(block.test) for block in tests)
        tested = _GROUP_RANK.findall(text)
        others = list(_ANY_RANK.finditer(text))
        return len(tested) == 1 == len(others) and any(
            word in self._unit.module.text
            for word in ("tensor_model_parallel", "pipeline_model_parallel", "tp_rank", "pp_rank")
        )


def _is_written_by_name(call: ast.Call) -> bool:
    """Return True for what is the same on all ranks: a tokenizer, a file of one name."""
    return last_name(call.func) in ("save_pretrained", "write_text")


def _touches_file(call: ast.Call) -> bool:
    name = dotted_name(call.func)
    return name in ("os.remove", "os.unlink", "torch.save") or name.endswith(".unlink")


def _leaves(block: ast.If) -> bool:
    return isinstance(block.body[-1], (ast.Return, ast.Raise, ast.Continue))


def _folder_of(call: ast.Call) -> ast.expr | None:
    """Return the folder that a call makes or removes."""
    if call.args and not dotted_name(call.func).endswith("path.mkdir"):
        return call.args[0]
    is_method = isinstance(call.func, ast.Attribute) and last_name(call.func) == "mkdir"
    return call.func.value if is_method and isinstance(call.func, ast.Attribute) else None


def _used_path(call: ast.Call, paths: dict[str, ast.Call] | set[str]) -> str:
    """Return the path among the arguments of a call; empty if there is none."""
    for passed in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(passed):
            if isinstance(node, (ast.Name, ast.Attribute)) and (text := ast.unparse(node)) in paths:
                return text
    return ""


def _may_write(call: ast.Call) -> bool:
    """Return False for ``open`` with a mode that reads, and for a trainer, which may wait."""
    if dotted_name(call.func).endswith("trainer.save_checkpoint"):
        return False
    if last_name(call.func) != "open":
        return True
    mode = argument(call, 1, "mode")
    return isinstance(mode, ast.Constant) and str(mode.value)[:1] in "wax"


def _exclude_each_other(unit: Unit, node: ast.AST, blocks: dict[int, ast.AST]) -> bool:
    """Return True if two nodes are in different branches of one test."""
    for parent, child in unit.ancestors(node):
        if id(parent) in blocks:
            other = blocks[id(parent)]
            return isinstance(parent, ast.If) and (child in parent.body) != (other in parent.body)
    return False


def _admits_two(test: ast.expr) -> bool:
    """Return True for a test of the global rank that exactly ranks 0 and 1 pass."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            name = dotted_name(node.left.func if isinstance(node.left, ast.Call) else node.left)
            limit = node.comparators[0]
            number = limit.value if isinstance(limit, ast.Constant) else None
            kind = type(node.ops[0])
            if name.rpartition(".")[2] in ("rank", "get_rank", "global_rank") and (
                (negated and (kind, number) == (ast.Gt, 1))
                or (not negated and (kind, number) in ((ast.LtE, 1), (ast.Lt, 2)))
            ):
                return True
    return False
