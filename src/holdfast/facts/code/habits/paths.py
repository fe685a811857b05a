"""Paths as they are written: which expressions name the same file each time that they are evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from holdfast.facts.code.habits.callees import callers
from holdfast.facts.code.habits.passages import LOOPS, Passage, argument, inside, passages

#: So deep names are followed to what was assigned to them.
_DEEP = 6
_COUNTS = re.compile(r"step|epoch|iter|round|count|index|idx|time|date|uuid|version", re.IGNORECASE)
_JOINING = frozenset({"os.path.join", "os.path.abspath", "os.path.expanduser", "pathlib.Path", "os.fspath"})


class Paths:
    """What stands for one path in a module; ``whole`` are its passages, the top first. Callers may stand elsewhere."""

    def __init__(self, whole: Sequence[Passage]) -> None:
        self.passages = whole
        self._callers: dict[ast.AST, list[tuple[Passage, ast.Call]]] = {}
        self._modules = {whole[0].module.file: whole}

    def _beside(self, passage: Passage) -> Sequence[Passage]:
        """All passages of its module, the top first."""
        module = passage.module
        if module.file not in self._modules:
            self._modules[module.file] = list(passages(module, passage.names))
        return self._modules[module.file]

    def same(self, passage: Passage, node: ast.expr, depth: int = 0) -> str | None:
        """A text that is the same for the same path; None where the path may change from one time to the next."""
        match node:
            case _ if depth > _DEEP:
                return None
            case ast.Constant():
                return repr(node.value)
            case ast.Name():
                return self._name(passage, node.id, depth)
            case ast.Attribute():
                return self._attribute(passage, node, depth)
            case ast.Subscript(slice=ast.Constant()):
                return _setting(ast.unparse(node))
            case _:
                return self._joined(passage, _parts(passage, node), depth)

    def _joined(self, passage: Passage, parts: Sequence[ast.expr], depth: int) -> str | None:
        texts = [self.same(passage, each, depth + 1) for each in parts]
        return None if None in texts or not texts else "/".join(each for each in texts if each is not None)

    def _attribute(self, passage: Passage, node: ast.Attribute, depth: int) -> str | None:
        """An attribute that is set once, in the constructor; of another thing than self, a setting."""
        if not (isinstance(node.value, ast.Name) and node.value.id == "self" and passage.owner is not None):
            return _setting(ast.unparse(node))
        written = [
            (each, value)
            for each in self._beside(passage)
            if each.owner is passage.owner
            for value in _assigned(each, f"self.{node.attr}")
        ]
        if len(written) != 1 or written[0][0].name != "__init__":
            return None
        given = written[0][1]
        known = self.same(written[0][0], given, depth + 1) if given is not None else None
        return known or f"{passage.owner.name}.{node.attr}"

    def _name(self, passage: Passage, name: str, depth: int) -> str | None:
        values = _assigned(passage, name)
        if len(values) == 1 and name not in passage.parameters:
            return self.same(passage, values[0], depth + 1) if values[0] is not None else None
        if values:
            return None
        if name in passage.parameters:
            return self._parameter(passage, name, depth)
        top = self._beside(passage)[0]
        given = _assigned(top, name) if passage.node is not top.node else []
        return self.same(top, given[0], depth + 1) if len(given) == 1 and given[0] is not None else None

    def _parameter(self, passage: Passage, name: str, depth: int) -> str | None:
        """What all callers give for it."""
        texts = {
            self.same(caller, given, depth + 1) if given is not None else None
            for caller, given in self.given(passage, name)
        }
        return texts.pop() if len(texts) == 1 else None

    def given(self, passage: Passage, name: str) -> Iterator[tuple[Passage, ast.expr | None]]:
        """What each caller gives for a parameter; None where it is left out."""
        for caller, call in self.callers(passage):
            at = passage.parameters.index(name) - (isinstance(call.func, ast.Attribute) and passage.owner is not None)
            yield caller, argument(call, at, name) if at >= 0 else None

    def callers(self, passage: Passage) -> list[tuple[Passage, ast.Call]]:
        """The calls of a function: in this module by its name (a library's of that name is another), and elsewhere."""
        known = self._callers.get(passage.node)
        if known is None:
            elsewhere = (each for each in callers(passage) if each[0].module is not passage.module)
            known = self._callers[passage.node] = [*self._named(passage), *elsewhere]
        return known

    def _named(self, passage: Passage) -> list[tuple[Passage, ast.Call]]:
        found = []
        for each in self.passages:
            for node in each.nodes:
                if isinstance(node, ast.Call):
                    func = node.func
                    name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
                    if name == passage.name and name != "__init__" and not each.called(node):
                        found.append((each, node))
        return found

    def again(self, passage: Passage, node: ast.AST, depth: int = 0) -> bool:
        """It is evaluated again and again: in a loop, or in a function that is called in one."""
        if any(isinstance(each, LOOPS) and node in inside(*each.body) for each in passage.nodes):
            return True
        return depth < _DEEP and any(
            self.again(caller, call, depth + 1) for caller, call in self.callers(passage) if caller is not passage
        )


def _setting(text: str) -> str | None:
    """An attribute or element of something that is not looked into; one that counts is another each time."""
    return None if _COUNTS.search(text) else text


def _parts(passage: Passage, node: ast.expr) -> Sequence[ast.expr]:
    """Of what a path is made; nothing where that is not known."""
    match node:
        case ast.JoinedStr(values=parts):
            return parts
        case ast.FormattedValue(value=value, format_spec=None):
            return [value]
        case ast.BinOp(left=left, op=ast.Div() | ast.Add(), right=right):
            return [left, right]
        case ast.Call(func=ast.Name(id="str" | "open"), args=[path, *_]):
            return [path]
        case ast.Call(args=parts) if passage.called(node) in _JOINING:
            return parts
        case _:
            return []


def _assigned(passage: Passage, name: str) -> list[ast.expr | None]:
    """What is assigned to a name (``self.path`` too) in a passage; None stands for what a loop or a tuple gives."""
    return [value for node in passage.nodes for target, value in _targets(node) if ast.unparse(target) == name]


def _targets(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            given: list[tuple[ast.expr, ast.expr | None]] = [(each, value) for each in targets]
            inner = [part for each in targets if isinstance(each, (ast.Tuple, ast.List)) for part in each.elts]
            return given + [(each, None) for each in inner]
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            return [(target, value)]
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            return [(target, value)]
        case ast.AugAssign(target=target) | ast.For(target=target) | ast.comprehension(target=target):
            return [(each, None) for each in inside(target) if isinstance(each, ast.expr)]
        case _:
            return []
