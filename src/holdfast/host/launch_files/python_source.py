"""Parses the variables that a Python program sets, and what it has done before that.

The source is parsed, not run. Statements are followed in order: branches separately, functions of
the same file where they are called, uncalled ones as if called at the end.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from holdfast.core.python_ast import (
    FunctionNode,
    NotPython,
    constant_text,
    dotted_name,
    last_name,
    parse_python,
    statement_blocks,
)
from holdfast.core.variable_table import ReadMoment
from holdfast.host.launch_files.shell import ShellUnreadable, is_of_interest
from holdfast.host.variable_sources import VariableSetting

#: What the program has certainly done so far, with lines.
_Done = dict[ReadMoment, int]
_COLLECTIVES = frozenset(
    """
    all_reduce all_gather broadcast barrier reduce reduce_scatter all_to_all all_gather_object
    all_gather_into_tensor reduce_scatter_tensor broadcast_object_list DistributedDataParallel DDP
    FullyShardedDataParallel
    """.split()
)
#: Functions of torch.cuda that do not create a CUDA context.
_WITHOUT_CONTEXT = frozenset(
    """
    is_available device_count manual_seed manual_seed_all set_device Stream Event amp nvtx
    """.split()
)
_MAX_DEPTH = 8


def read_python(text: str, origin: str) -> Iterator[VariableSetting]:
    """Yield what the program sets, in line order.

    Raises Unreadable if it is not valid Python of this version.
    """
    if "env" not in text:
        return
    try:
        tree = parse_python(text)
    except NotPython as error:
        raise ShellUnreadable(str(error)) from error
    yield from read_python_tree(tree, origin)


def read_python_tree(tree: ast.Module, origin: str) -> Iterator[VariableSetting]:
    """Like :func:`read`, for a parsed program. Raises Unreadable if it is nested too deeply."""
    program = _Program(tree, origin)
    try:
        program.run()
    except RecursionError as error:
        raise ShellUnreadable("statements are nested too deeply") from error
    yield from sorted(program.settings.values(), key=lambda setting: setting.line or 0)


class _Program:
    """The traversal of one file: the settings so far, and the functions entered."""

    def __init__(self, tree: ast.Module, origin: str) -> None:
        self._tree, self._origin = tree, origin
        self.settings: dict[tuple[str, int], VariableSetting] = {}
        self._functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, FunctionNode)
        }
        self._entered: set[str] = set()

    def run(self) -> None:
        """Traverse the module, then functions that it does not call: its imports precede them."""
        done = self._block(self._tree.body, {}, 0)
        imported: _Done = {
            moment: line for moment, line in done.items() if moment is ReadMoment.IMPORT
        }
        for name, function in self._functions.items():
            if name not in self._entered:
                self._block(function.body, dict(imported), 1)

    def _block(self, body: Sequence[ast.stmt], done: _Done, depth: int) -> _Done:
        for statement in body:
            done = self._statement(statement, done, depth)
        return done

    def _statement(self, statement: ast.stmt, done: _Done, depth: int) -> _Done:
        if isinstance(statement, FunctionNode):
            return done
        if isinstance(statement, ast.ClassDef):
            return self._block(statement.body, done, depth)
        if isinstance(statement, ast.Import | ast.ImportFrom):
            return self._import(statement, done)
        if branches := _branches(statement):
            for expression in _heads(statement):
                done = self._expression(expression, done, depth)
            ends = [self._block(block, dict(done), depth) for block in branches]
            # Only what every branch, and the path around them, has done counts.
            is_exhaustive = (
                isinstance(statement, ast.With | ast.AsyncWith | ast.Try)
                or (isinstance(statement, ast.If) and bool(statement.orelse))
                or _is_main(statement)
            )
            paths = ends if is_exhaustive else [*ends, done]
            if isinstance(statement, ast.Try):
                paths = ends[:1]
            return {
                moment: line
                for moment, line in paths[0].items()
                if all(moment in path for path in paths)
            }
        return self._expression(statement, done, depth)

    def _import(self, statement: ast.Import | ast.ImportFrom, done: _Done) -> _Done:
        names = (
            [alias.name for alias in statement.names]
            if isinstance(statement, ast.Import)
            else [statement.module or ""]
        )
        if any(name.split(".")[0] == "torch" for name in names):
            return {ReadMoment.IMPORT: statement.lineno, **done}
        return done

    def _expression(self, node: ast.AST, done: _Done, depth: int) -> _Done:
        """Calls in an expression take effect before its assignments."""
        for call in (child for child in ast.walk(node) if isinstance(child, ast.Call)):
            done = self._call(call, done, depth)
        for name, value, line in _assigned(node):
            if is_of_interest(name):
                self._note(name, value, line, done)
        return done

    def _call(self, call: ast.Call, done: _Done, depth: int) -> _Done:
        name = dotted_name(call.func)
        last = name.rpartition(".")[2]
        if last in ("init_process_group", "init_distributed") or name in (
            "Accelerator",
            "accelerate.Accelerator",
        ):
            return {ReadMoment.GROUP: call.lineno, **done}
        if last in _COLLECTIVES and (
            name.startswith(("dist.", "torch.distributed.")) or last[0].isupper()
        ):
            return {ReadMoment.COMMUNICATOR: call.lineno, **done}
        if (
            name.startswith("torch.cuda.") and name.split(".")[2] not in _WITHOUT_CONTEXT
        ) or last == "cuda":
            return {ReadMoment.CUDA: call.lineno, **done}
        function = self._functions.get(name)
        if function is not None and depth < _MAX_DEPTH and name not in self._entered:
            self._entered.add(name)
            return self._block(function.body, done, depth + 1)
        return done

    def _note(self, name: str, value: str | None, line: int, done: _Done) -> None:
        self.settings.setdefault(
            (name, line),
            VariableSetting(
                name=name,
                value=value,
                origin=self._origin,
                line=line,
                done_before=tuple(done.items()),
            ),
        )


def _branches(statement: ast.stmt) -> list[Sequence[ast.stmt]]:
    """Return the alternative blocks of a statement; in a try statement, the handlers."""
    blocks = list(statement_blocks(statement))
    if not isinstance(statement, ast.Try | ast.TryStar):
        return [block for _, block in blocks]
    success = [inner for branch, block in blocks if branch != "handler" for inner in block]
    return [success, *(block for branch, block in blocks if branch == "handler")]


def _heads(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the expressions of a compound statement."""
    for field in ("test", "iter", "subject", "items"):
        value = getattr(statement, field, None)
        yield from (
            value if isinstance(value, list) else [value] if isinstance(value, ast.AST) else []
        )


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _assigned(node: ast.AST) -> Iterator[tuple[str, str | None, int]]:
    """Yield name, value and line of what a statement sets in a (possible) environment."""
    for child in ast.walk(node):
        if isinstance(child, ast.Assign):
            for target in child.targets:
                if (
                    isinstance(target, ast.Subscript)
                    and (name := constant_text(target.slice))
                    and _is_environment(target.value)
                ):
                    yield name, constant_text(child.value), child.lineno
        elif isinstance(child, ast.Call):
            yield from _set_by_call(child)
        elif isinstance(child, ast.Dict):
            for key, value in zip(child.keys, child.values, strict=True):
                if key is not None and (name := constant_text(key)) and name.isupper():
                    yield name, constant_text(value), key.lineno


def _set_by_call(call: ast.Call) -> Iterator[tuple[str, str | None, int]]:
    name = dotted_name(call.func) if isinstance(call.func, ast.Attribute) else ""
    if (
        name.endswith(("environ.setdefault", "putenv", "monkeypatch.setenv"))
        and len(call.args) >= 2
    ):
        if variable := constant_text(call.args[0]):
            yield variable, constant_text(call.args[1]), call.lineno
    elif name.endswith("environ.update"):
        for keyword in call.keywords:
            if keyword.arg:
                yield keyword.arg, constant_text(keyword.value), call.lineno


def _is_environment(node: ast.expr) -> bool:
    return "env" in last_name(node).casefold()
