"""Variables that a Python program sets for itself or its children, and what it has done before it does.

The source is read as a tree and not run. Statements are followed in their order: branches by themselves, functions of
the same file where they are called, others as if they were called at the end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.facts.launch_files.shell import Unreadable, of_interest
from holdfast.facts.variables import Given
from holdfast.variables import Moment

_Passed = dict[Moment, int]
_COLLECTIVES = frozenset({
    "all_reduce", "all_gather", "broadcast", "barrier", "reduce", "reduce_scatter", "all_to_all", "all_gather_object",
    "all_gather_into_tensor", "reduce_scatter_tensor", "broadcast_object_list", "DistributedDataParallel", "DDP",
    "FullyShardedDataParallel",
})  # fmt: skip
#: Functions of torch.cuda that do not make a context.
_WITHOUT_CONTEXT = frozenset({"is_available", "device_count", "manual_seed", "manual_seed_all", "set_device", "Stream",
                              "Event", "amp", "nvtx"})  # fmt: skip
_MOST_DEPTH = 8


def read(text: str, origin: str) -> Iterator[Given]:
    """What the program sets, in the order of lines. Raises Unreadable where it is no Python of this version."""
    if "env" not in text:
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        raise Unreadable(f"it is no Python that can be read{line}") from error
    yield from read_tree(tree, origin)


def read_tree(tree: ast.Module, origin: str) -> Iterator[Given]:
    """As :func:`read`, of a program that was parsed already. Raises Unreadable where it is nested too deeply."""
    program = _Program(tree, origin)
    try:
        program.run()
    except RecursionError as error:
        raise Unreadable("its statements are nested too deeply") from error
    yield from sorted(program.found.values(), key=lambda given: given.line or 0)


class _Program:
    """The walk through one file: what was found, and which functions were entered."""

    def __init__(self, tree: ast.Module, origin: str) -> None:
        self._tree, self._origin = tree, origin
        self.found: dict[tuple[str, int], Given] = {}
        self._functions = {node.name: node for node in ast.walk(tree)
                           if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}  # fmt: skip
        self._entered: set[str] = set()

    def run(self) -> None:
        """The module, then functions that nobody in the file calls: imports at the top are behind them."""
        passed = self._block(self._tree.body, {}, 0)
        imported: _Passed = {moment: line for moment, line in passed.items() if moment is Moment.IMPORT}
        for name, function in self._functions.items():
            if name not in self._entered:
                self._block(function.body, dict(imported), 1)

    def _block(self, body: Sequence[ast.stmt], passed: _Passed, depth: int) -> _Passed:
        for statement in body:
            passed = self._statement(statement, passed, depth)
        return passed

    def _statement(self, statement: ast.stmt, passed: _Passed, depth: int) -> _Passed:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return passed
        if isinstance(statement, ast.ClassDef):
            return self._block(statement.body, passed, depth)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return self._import(statement, passed)
        if blocks := _blocks(statement):
            for expression in _heads(statement):
                passed = self._expression(expression, passed, depth)
            ends = [self._block(block, dict(passed), depth) for block in blocks]
            # A finding has to be sure: passed is what every branch, and the way around them, has passed.
            whole = (
                isinstance(statement, ast.With | ast.AsyncWith | ast.Try)
                or (isinstance(statement, ast.If) and bool(statement.orelse))
                or _is_main(statement)
            )
            sure = ends if whole else [*ends, passed]
            if isinstance(statement, ast.Try):
                sure = ends[:1]
            return {moment: line for moment, line in sure[0].items() if all(moment in end for end in sure)}
        return self._expression(statement, passed, depth)

    def _import(self, statement: ast.Import | ast.ImportFrom, passed: _Passed) -> _Passed:
        names = (
            [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else [statement.module or ""]
        )
        if any(name.split(".")[0] == "torch" for name in names):
            return {Moment.IMPORT: statement.lineno, **passed}
        return passed

    def _expression(self, node: ast.AST, passed: _Passed, depth: int) -> _Passed:
        """Assignments take effect after what is called in them."""
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            passed = self._call(call, passed, depth)
        for name, value, line in _assigned(node):
            if of_interest(name):
                self._note(name, value, line, passed)
        return passed

    def _call(self, call: ast.Call, passed: _Passed, depth: int) -> _Passed:
        name = ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
        last = name.rpartition(".")[2]
        if last in ("init_process_group", "init_distributed") or name in ("Accelerator", "accelerate.Accelerator"):
            return {Moment.GROUP: call.lineno, **passed}
        if last in _COLLECTIVES and (name.startswith(("dist.", "torch.distributed.")) or last[0].isupper()):
            return {Moment.COMMUNICATOR: call.lineno, **passed}
        if (name.startswith("torch.cuda.") and name.split(".")[2] not in _WITHOUT_CONTEXT) or last == "cuda":
            return {Moment.CUDA: call.lineno, **passed}
        function = self._functions.get(name)
        if function is not None and depth < _MOST_DEPTH and name not in self._entered:
            self._entered.add(name)
            return self._block(function.body, passed, depth + 1)
        return passed

    def _note(self, name: str, value: str | None, line: int, passed: _Passed) -> None:
        self.found.setdefault(
            (name, line),
            Given(
                name=name,
                value=value,
                origin=self._origin,
                line=line,
                passed=tuple(passed.items()),
            ),
        )


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(statement, ast.Try | ast.TryStar):
        after = [*statement.body, *statement.orelse, *statement.finalbody]
        return [after, *(handler.body for handler in statement.handlers)]
    if isinstance(statement, ast.Match):
        return [case.body for case in statement.cases]
    found = [getattr(statement, part, []) for part in ("body", "orelse")]
    return [block for block in found if isinstance(block, list) and block]


def _heads(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement that has blocks."""
    for part in ("test", "iter", "subject", "items"):
        value = getattr(statement, part, None)
        yield from value if isinstance(value, list) else [value] if isinstance(value, ast.AST) else []


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _assigned(node: ast.AST) -> Iterator[tuple[str, str | None, int]]:
    """Name, value and line of what a statement sets in an environment, or in a mapping that may become one."""
    for each in ast.walk(node):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                if (
                    isinstance(target, ast.Subscript)
                    and (name := _text(target.slice))
                    and _is_environment(target.value)
                ):
                    yield name, _text(each.value), each.lineno
        elif isinstance(each, ast.Call):
            yield from _called(each)
        elif isinstance(each, ast.Dict):
            for key, value in zip(each.keys, each.values, strict=True):
                if key is not None and (name := _text(key)) and name.isupper():
                    yield name, _text(value), key.lineno


def _called(call: ast.Call) -> Iterator[tuple[str, str | None, int]]:
    name = ast.unparse(call.func) if isinstance(call.func, ast.Attribute) else ""
    if name.endswith(("environ.setdefault", "putenv", "monkeypatch.setenv")) and len(call.args) >= 2:
        if variable := _text(call.args[0]):
            yield variable, _text(call.args[1]), call.lineno
    elif name.endswith("environ.update"):
        for keyword in call.keywords:
            if keyword.arg:
                yield keyword.arg, _text(keyword.value), call.lineno


def _is_environment(node: ast.expr) -> bool:
    name = ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""
    return "env" in name.rpartition(".")[2].casefold()


def _text(node: ast.expr) -> str | None:
    """A constant as it becomes a variable's text; None where it is worked out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int) and not isinstance(node.value, bool):
        return str(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and len(node.args) == 1:
        return _text(node.args[0])
    return None
