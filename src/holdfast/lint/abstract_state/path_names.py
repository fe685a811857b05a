"""Paths as text with placeholders: equal text means one path, wherever it is built.

``«name»`` is what a caller passes for a parameter, ``°name`` a setting or attribute, ``*`` anything
in one component, such as a count, ``@`` the rank or something else of one rank, and ``~`` a value
that is computed from parameters or elements of data in a way that is not followed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from holdfast.lint.abstract_state.arguments import Arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.sources.modules import (
    FUNCTIONS,
    Function,
    Module,
    dotted_name,
    last_name,
)

#: Maximum number of assignments and calls to follow.
_MAX_DEPTH = 8
_RANK_NAME = re.compile(
    r"rank|host|(?:^|_)(?:node|proc|process|gpu|device|worker|local|shard|rand)(?:$|_)|uuid|pid",
    re.IGNORECASE,
)
#: Functions whose result is a rank's own.
_OWN_CALL = re.compile(r"te?mp|now$|time$|getpid", re.IGNORECASE)
_JOINS = frozenset({"join", "joinpath", "Path", "PurePath", "PosixPath", "UPath"})
_PATH_MODULES = frozenset({"path", "osp", "posixpath", "op"})
_CONVERSIONS = frozenset({
    "str", "fspath", "abspath", "realpath", "normpath", "expanduser", "expandvars", "absolute",
    "resolve", "as_posix", "rstrip",
})  # fmt: skip
#: The parts of a path that ranks may not share.
RANK_PART, UNKNOWN_PART = "@", "~"
#: The value of a variable that counts.
_COUNTER = ast.Constant("*")
_PLACEHOLDER = re.compile(r"«(\w+)»")
_FORMAT_FIELD = re.compile(r"\{[^{}]*\}|%[-0-9.]*[a-z]")


class _Place:
    """The function, or module, in which a path is written."""

    def __init__(self, state: InterpreterState, function: Function | None, module: Module) -> None:
        self.state = state
        self.function = function
        self.module = module

    def text(self, node: ast.expr | None, depth: int = 0) -> str | None:
        """Return the path's text; None if it is unknown."""
        depth += 1
        match node:
            case _ if depth > _MAX_DEPTH:
                text = None
            case ast.Constant(value=str() | int() as value):
                text = str(value)
            case ast.Name(id=name):
                text = self._name(name, node.lineno, depth)
            case ast.Attribute(attr="parent", value=inner):
                text = _parent(self.text(inner, depth))
            case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
                text = _setting(name)
            case ast.JoinedStr(values=parts):
                text = "".join(self._hole(part, depth) for part in parts)
            case ast.BinOp():
                text = self._operation(node, depth)
            case ast.Call():
                text = self._call(node, depth)
            case _:
                text = None
        return text

    def _operation(self, node: ast.BinOp, depth: int) -> str | None:
        match node:
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _join([self.text(left, depth), self._part(right, depth)])
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                first = self.text(left, depth)
                return None if first is None else first + self._part(right, depth)
            case ast.BinOp(left=ast.Constant(value=str() as form), op=ast.Mod()):
                return _FORMAT_FIELD.sub("*", form)
            case _:
                return None

    def _hole(self, part: ast.expr, depth: int) -> str:
        return self._part(part.value if isinstance(part, ast.FormattedValue) else part, depth)

    def _part(self, node: ast.expr, depth: int) -> str:
        """Return the text of a part of a path; a wildcard if it is unknown."""
        return self.text(node, depth) or (UNKNOWN_PART if self._may_differ(node, depth) else "*")

    def _may_differ(self, node: ast.expr, depth: int) -> bool:
        """Return True if an unknown value is made from parameters or elements of data."""
        if self.function is None or depth > _MAX_DEPTH:
            return False
        nodes = list(ast.walk(node))
        called = {inner.func for inner in nodes if isinstance(inner, ast.Call)}
        settings = {
            inner.value
            for inner in nodes
            if isinstance(inner, ast.Attribute) and inner not in called
        }
        names = {
            inner.id for inner in nodes if isinstance(inner, ast.Name) and inner not in settings
        } - {"self"}
        parameters, assigned = _parameters(self.function.node), _assigned(self.function.node)
        return any(
            name in parameters
            or any(
                value is None
                or (
                    value is not _COUNTER
                    and not _converts(value, name)
                    and self._may_differ(value, depth + 1)
                )
                for _, value in assigned.get(name, ())
            )
            for name in names
        )

    def _name(self, name: str, line: int, depth: int) -> str | None:
        """Return the last value assigned before, a parameter, or a variable of the module."""
        if self.function is not None:
            pairs = _assigned(self.function.node).get(name, [])
            before = [pair for pair in pairs if pair[0].lineno < line] or pairs
            value = before[-1][1] if before else None
            indents = [target.col_offset for target, _ in before]
            varies = value is not _COUNTER and bool(before)
            if varies and (value is None or indents[-1] > min(indents)):  # perhaps of one rank
                return "@"
            if value is not None and not _converts(value, name):
                return self.text(value, depth)
            if name in _parameters(self.function.node):
                return "@" if _RANK_NAME.search(name) else f"«{name}»"
        pairs = _assigned(self.module.tree).get(name, [])
        value = pairs[-1][1] if pairs else None
        if value is not None and not _converts(value, name):
            return _Place(self.state, None, self.module).text(value, depth)
        return _setting(name)

    def _call(self, node: ast.Call, depth: int) -> str | None:
        name = last_name(node.func)
        receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
        of_text = (
            name == "join" and receiver is not None and last_name(receiver) not in _PATH_MODULES
        )
        if name in _JOINS and not of_text:
            parts = [part for part in node.args if not isinstance(part, ast.Starred)]
            start = [receiver] if name == "joinpath" and receiver is not None else []
            first, *others = (*start, *parts) or (None,)
            return _join([self.text(first, depth), *(self._part(part, depth) for part in others)])
        if name in _CONVERSIONS or name == "dirname":
            inner = node.args[0] if node.args and dotted_name(node.func) else receiver
            text = self.text(inner, depth)
            return _parent(text) if name == "dirname" else text
        first = node.args[0] if node.args else None
        if name == "format" and isinstance(receiver, ast.Constant):
            return _FORMAT_FIELD.sub("*", str(receiver.value))
        if name in ("get", "getenv") and isinstance(first, ast.Constant):
            return _setting(str(first.value))
        return self._returned(self._callee(node.func), node, depth)

    def _callee(self, called: ast.expr) -> Function | None:
        """Return the function of the program that is called by name, or as a method of self."""
        symbols = self.state.symbols
        definition: object = None
        owner = self.function.owner if self.function is not None else None
        if isinstance(called, ast.Name):
            definition = symbols.resolve_member(self.module, called.id)
        elif dotted_name(called).startswith("self.") and owner is not None:
            definition = symbols.find_method(owner, last_name(called))
        return definition if isinstance(definition, Function) else None

    def _returned(self, function: Function | None, node: ast.Call, depth: int) -> str | None:
        """Return the path that a function of the program returns."""
        if function is None:
            name = last_name(node.func)
            return "@" if _RANK_NAME.search(name) or _OWN_CALL.search(name) else None
        returned = _returned_values(function.node)
        if not returned:
            return None
        place = _Place(self.state, function, function.module)
        text = place.text(returned[-1], depth)
        if text is None:
            return None
        passed = dict(zip(_positional(function), node.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if not any(self._may_differ(value, depth) for value in passed.values()):
            text = text.replace(UNKNOWN_PART, "*")
        given = {
            name: self.text(passed.get(name), depth) or f"?{name}:{node.lineno}"
            for name in _PLACEHOLDER.findall(text)
        }
        return substitute(text, given)


def path_text(state: InterpreterState, frame: Frame, node: ast.expr) -> str | None:
    """Return a path's text in a function, normalized; None if nothing is known of it."""
    text = _Place(state, frame.function, frame.scope.module).text(node)
    text = re.sub(r"/+", "/", text).rstrip("/").removeprefix("./") if text else None
    return text if text and text.strip("*@~./_-?") else None


def forget_functions() -> None:
    """Forget the functions of a program that is done, which hold its syntax trees."""
    _assigned.cache_clear()
    _returned_values.cache_clear()


def passed_paths(
    state: InterpreterState, frame: Frame, node: ast.expr, function: Function, arguments: Arguments
) -> tuple[tuple[str, str], ...]:
    """Return the paths that a call passes for the parameters of a function."""
    place = _Place(state, frame.function, frame.scope.module)
    inside = _Place(state, function, function.module)
    passed = []
    for at, name in enumerate(_parameters(function.node)):
        given = arguments.node(at if at < len(function.parameters) else -1, name)
        text = place.text(given) if given is not None else inside.text(function.default_of(name))
        passed.append((name, text or f"?{name}:{node.lineno}"))
    return tuple(passed)


def substitute(text: str, passed: Mapping[str, str]) -> str:
    """Return a path's text with what is passed for parameters."""
    return _PLACEHOLDER.sub(lambda match: passed.get(match[1], match[0]), text)


def comparable_path(text: str) -> str:
    """Return a path's text in which what ranks may not share is anything."""
    return text.replace(RANK_PART, "*").replace(UNKNOWN_PART, "*")


def is_same_path(one: str, other: str) -> bool:
    """Return True if two texts may name one path, and share a component."""
    return one.count("/") == other.count("/") and _agree(one, other)


def is_inside(folder: str, path: str) -> bool:
    """Return True if a path is in a folder."""
    return path.count("/") > folder.count("/") and _agree(folder, path)


def _agree(one: str, other: str) -> bool:
    pairs = list(zip(one.split("/"), other.split("/"), strict=False))
    return all(_matches(first, second) for first, second in pairs) and any(
        first == second and first.strip("*") for first, second in pairs
    )


def _matches(one: str, other: str) -> bool:
    """Return True if two components can be equal; a wildcard needs equal text around it."""
    if one == other:
        return True
    if "*" not in one and "*" not in other:
        return False
    (start, _, end), (other_start, _, other_end) = _around(one), _around(other)
    return (start.startswith(other_start) or other_start.startswith(start)) and (
        end.endswith(other_end) or other_end.endswith(end)
    )


def _around(text: str) -> tuple[str, str, str]:
    """Return what is before the first wildcard and after the last one."""
    if "*" not in text:
        return text, "", text
    return text.partition("*")[0], "*", text.rpartition("*")[2]


def _setting(name: str) -> str:
    return "@" if _RANK_NAME.search(name) else f"°{name}"


def _parent(text: str | None) -> str | None:
    return text.rpartition("/")[0] or None if text else None


def _join(texts: list[str | None]) -> str | None:
    if not texts or texts[0] is None:
        return None
    return "/".join(text for text in texts if text)


def _converts(value: ast.expr, name: str) -> bool:
    """Return True for ``path = Path(path)``."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


@lru_cache(maxsize=512)
def _assigned(tree: ast.AST) -> dict[str, list[tuple[ast.Name, ast.expr | None]]]:
    """Return the targets and values of the assignments to each name; None for an unknown value."""
    values: dict[str, list[tuple[ast.Name, ast.expr | None]]] = {}
    for node in _own_nodes(tree):
        for target, value in _assignments(node):
            for element in ast.walk(target):
                if isinstance(element, ast.Name):
                    known = value if element is target else None
                    values.setdefault(element.id, []).append((element, known))
    return {name: sorted(pairs, key=lambda pair: pair[0].lineno) for name, pairs in values.items()}


def _assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            return [
                (target, value)
                for target in targets
                if not isinstance(target, (ast.Attribute, ast.Subscript))
            ]
        case ast.AnnAssign(target=ast.Name() as target, value=ast.expr() as value):
            return [(target, value)]
        case ast.AugAssign(target=ast.Name() as target):
            return [(target, _COUNTER)]
        case ast.withitem(context_expr=ast.Call() as call, optional_vars=ast.Name() as target):
            opened = call.args[0] if last_name(call.func) == "open" and call.args else None
            return [(target, opened)]
        case ast.For(target=target, iter=over) | ast.comprehension(target=target, iter=over):
            return _loop_targets(target, over)
        case _:
            return []


def _loop_targets(target: ast.expr, over: ast.expr) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return the variables of a loop: numbers are alike on all ranks, elements may not be."""
    called = last_name(over.func) if isinstance(over, ast.Call) else ""
    if isinstance(target, ast.Tuple) and called == "enumerate":
        return [(target.elts[0], _COUNTER), *((element, None) for element in target.elts[1:])]
    return [(target, _COUNTER if called in ("range", "trange", "count") else None)]


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without inner functions and classes."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef))
        ]


@lru_cache(maxsize=512)
def _returned_values(tree: ast.AST) -> list[ast.expr]:
    return [
        node.value
        for node in _own_nodes(tree)
        if isinstance(node, ast.Return)
        and node.value is not None
        and not (isinstance(node.value, ast.Constant) and node.value.value is None)
    ]


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[str]:
    arguments = node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [argument.arg for argument in every]


def _positional(function: Function) -> list[str]:
    names = function.parameters
    return names[1:] if function.owner is not None else names
