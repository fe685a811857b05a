"""Find files and folders that several ranks create, remove, number or test at the same time."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.file_calls import DOWNLOAD_NAME, EXISTENCE_TESTS, FILE_CALLS
from holdfast.lint.patterns.one_rank_files import (
    WAITING_NAME,
    OneRankFiles,
)
from holdfast.lint.patterns.rank_guards import (
    DISTRIBUTED_WORDS,
    RankGuards,
    Unit,
    is_guarded,
    is_rank_test,
    iter_units,
)
from holdfast.lint.patterns.scopes import argument, is_constant_argument
from holdfast.lint.patterns.shared_names import is_named_by_clock, is_shared_path, names_in
from holdfast.lint.sources.modules import FUNCTIONS, Module, SymbolTable, dotted_name, last_name

_WORDS = re.compile(
    r"(?:makedirs|mkdir|rmtree|removedirs|rmdir|unlink|copytree|save_pretrained|exists|isfile|isdir"
    r"|os\.(?:remove|rename|replace)|torch\.save|shutil\.move|urlretrieve|extractall|unpack_archive"
    r"|download\w*|get_file|fetch_file|write_text|write_bytes)\(|download=True|['\"][wx]b?['\"]"
    r"|['\"]make['\" ]"
)
#: Parts of these words, to search for which takes a fifth of the time of the pattern.
_PARTS = (
    "dir(", "tree(", "dirs(", "unlink(", "save", "exists(", "file(", "remove(", "rename(",
    "replace(", "move(", "retrieve(", "extractall(", "archive(", "download",
    "write_", "'w", '"w', "'x", '"x', "'make", '"make',
)  # fmt: skip
#: Functions that raise if the path exists, unless they have an argument for that.
_CREATE = frozenset({"os.makedirs", "os.mkdir", "shutil.copytree"})
_TARGET_NAME = re.compile(r"path|dir|root|folder|prefix|dest|file|out|cache", re.IGNORECASE)
_SAFE_DOWNLOAD = re.compile(r"^torch\.hub|huggingface|modelscope|nltk|hf_hub|snapshot")
_RUN = re.compile(r"^(?:os\.system|subprocess\.(?:run|call|check_call|check_output))$")
_SAVED_ALIKE = re.compile(r"tokenizer|process(?:or|ing)|feature_extractor|config", re.IGNORECASE)
_WRITING_NAME = re.compile(r"save|write|dump|open|touch|copy|makedirs|mkdir|download|export")
_LISTS = re.compile(r"\b(?:listdir|glob|iterdir)\(")
#: What may give all ranks one name.
_SHARES_NAME = re.compile(r"broadcast|gather|scatter|barrier|wait_for|first\(")
#: Kinds that are reported, as notes, if only the file shows that several ranks run it.
_REPORTED_BY_FILE = frozenset({"created", "downloaded"})
#: Kinds that need one path on all ranks, which the interpreter may know better.
CHANGES_BY_ALL = frozenset({"created", "downloaded", "removed", "written"})
_RACE_ERRORS = re.compile(r"FileExists|FileNotFound|OSError|IOError|Exception|shutil\.Error")


def find_file_races(modules: Collection[Module], symbols: SymbolTable) -> Iterator[Divergence]:
    """Yield races of ranks on one path, in code that several ranks evidently run."""
    if not any(word in module.text for module in modules for word in DISTRIBUTED_WORDS):
        return
    guards = RankGuards(modules)
    for module in modules:
        if not module.is_test and any(part in module.text for part in _PARTS):
            for unit in iter_units(module, _WORDS):
                yield from _Finder(guards, unit, symbols).find()


class _Finder:
    """Search in one function or method."""

    def __init__(self, guards: RankGuards, unit: Unit, symbols: SymbolTable) -> None:
        self._guards = guards
        self._unit = unit
        self._scope = unit.scope(symbols)
        self._one_rank = OneRankFiles(guards, unit)

    def find(self) -> Iterator[Divergence]:
        """Yield the races."""
        calls = self._unit.calls
        for call in calls:
            name = self._scope.library_call_name(call) or dotted_name(call.func)
            yield from self._numbered(call, name)
            yield from self._at_call(call, name)
        for node in self._unit.nodes:
            if isinstance(node, (ast.If, ast.While)):
                yield from self._existence(node)

    def _at_call(self, call: ast.Call, name: str) -> Iterator[Divergence]:
        path = argument(call, 0, "path")
        known = FILE_CALLS.get(name)
        changed = argument(call, known.position, known.keyword) if known is not None else None
        if name in _CREATE or (name.endswith(".mkdir") and not call.args):
            yield from self._created(call, name, changed if name in _CREATE else _receiver(call))
        elif known is not None and known.kind in ("removes", "moves"):
            if changed is not None:
                yield from self._removed(call, changed)
        elif (target := _downloaded(call, name)) is not None:
            yield from self._report("downloaded", call, target)
        elif _RUN.match(name) and path is not None and _runs_make(path):
            yield from self._report("built", call, path, any_path=True)
        else:
            written = self._written(call, name)
            if written is not None:
                yield from self._one_rank.written(call, written)
            if written is not None and not self._is_passed_whole(written, name):
                yield from self._report("written", call, written)

    def _created(self, call: ast.Call, name: str, path: ast.expr | None) -> Iterator[Divergence]:
        if path is not None:
            yield from self._clocked(call, path)
            if self._creates_exclusively(call, name, path) and not self._is_made_before(call, path):
                yield from self._report("created", call, path)

    def _removed(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        if self._raises_if_absent(call) and _is_listed(self._unit, path):
            yield from self._report("removed", call, path)
        yield from self._one_rank.removed_in_turn(call, path)

    def _report(
        self, kind: str, call: ast.AST, path: ast.expr, *, any_path: bool = False
    ) -> Iterator[Divergence]:
        """Yield the divergence if all ranks run the call with the same path.

        If only the file shows that several ranks do, the finding rests on names.
        """
        if not any_path and not is_shared_path(self._guards, self._unit, path):
            return
        location = self._unit.location(call)
        site = self._guards.shared_site(self._unit, call)
        by_name = site is None and kind in _REPORTED_BY_FILE
        if by_name:
            site = self._guards.shared_site(self._unit, call, by_file=True)
        if site is not None and not (kind == "written" and site != location):
            yield Divergence(kind, site, location, ast.unparse(path), (), by_name=by_name)

    def _creates_exclusively(self, call: ast.Call, name: str, path: ast.expr) -> bool:
        """Return True if the call raises when another rank was faster, after a test of the path."""
        keyword = FILE_CALLS[name].tolerance if name in _CREATE else "exist_ok"
        if keyword and any(given.arg in (keyword, None) for given in call.keywords):
            return False
        position = {"os.makedirs": 2}.get(name)
        if position is not None and len(call.args) > position:
            return False
        tested = any(
            isinstance(parent, ast.If) and _tests_existence(parent.test, path)
            for parent, _ in self._unit.ancestors(call)
        )
        return tested and not self._is_handled(call)

    def _is_made_before(self, call: ast.Call, path: ast.expr) -> bool:
        """Return True if all visible callers have saved something to the passed folder."""
        unit = self._unit
        function = unit.function_of(call)
        if function is None or not isinstance(path, ast.Name):
            return False
        parameters = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        if path.id not in parameters:
            return False
        position = parameters.index(path.id) - (parameters[0] in ("self", "cls"))
        callers = self._guards.callers(unit, function)
        return bool(callers) and all(
            isinstance(calling, ast.Call)
            and _saves_before(caller, calling, argument(calling, position, path.id))
            for caller, calling in callers
        )

    def _raises_if_absent(self, call: ast.Call) -> bool:
        return not (
            is_constant_argument(call, "ignore_errors", answer=True)
            or any(keyword.arg == "onerror" for keyword in call.keywords)
            or (len(call.args) > 1 and last_name(call.func) == "rmtree")
            or self._is_handled(call)
        )

    def _is_handled(self, call: ast.Call) -> bool:
        """Return True if an error of the file system is caught in the function."""
        for parent, child in self._unit.ancestors(call):
            if isinstance(parent, ast.Try) and child in parent.body:
                types = [handler.type for handler in parent.handlers]
                if any(kind is None or _RACE_ERRORS.search(ast.unparse(kind)) for kind in types):
                    return True
            if isinstance(parent, ast.With) and any(
                "suppress" in ast.unparse(item.context_expr) for item in parent.items
            ):
                return True
        return False

    def _written(self, call: ast.Call, name: str) -> ast.expr | None:
        """Return the path that a call overwrites; None for another call."""
        if name == "torch.save":
            path = argument(call, 1, "f")
            path = None if path is not None and self._is_open(path) else path
        elif name == "open" or name.endswith(".open"):
            mode = argument(call, 1, "mode")
            writes = isinstance(mode, ast.Constant) and mode.value in ("w", "wb")
            path = argument(call, 0, "file") if writes else None
        elif name.endswith((".write_text", ".write_bytes")):
            path = _receiver(call)
        elif name.endswith(".save_pretrained") and _SAVED_ALIKE.search(name):
            main = any("main" in (keyword.arg or "") for keyword in call.keywords)
            path = None if main else argument(call, 0, "save_directory")
        else:
            return None
        return None if isinstance(path, ast.Call) and "BytesIO" in ast.unparse(path) else path

    def _is_open(self, file: ast.expr) -> bool:
        """Return True for a file that a ``with`` around it opens: that call is judged."""
        return any(
            item.optional_vars is not None and ast.unparse(item.optional_vars) == ast.unparse(file)
            for parent, _ in self._unit.ancestors(file)
            if isinstance(parent, ast.With)
            for item in parent.items
        )

    def _is_passed_whole(self, path: ast.expr, name: str) -> bool:
        """Return True for a parameter as name, which may differ by rank, except a folder's."""
        function = self._unit.function_of(path)
        if function is None or name.endswith("save_pretrained"):
            return False
        path = _file_name(self._unit, path)
        if not isinstance(path, ast.Name):
            return False
        parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        return not self._unit.assigned(path.id) and path.id in [arg.arg for arg in parameters]

    def _numbered(self, call: ast.Call, name: str) -> Iterator[Divergence]:
        """Yield a count of folder entries that becomes part of a created path."""
        if name != "len" or not call.args or not _lists_folder(self._unit, call.args[0]):
            return
        names = _derived_names(self._unit, call)
        for other in self._unit.nodes:
            if isinstance(other, ast.Call) and other.args and other is not call:
                other_name = dotted_name(other.func)
                if last_name(other.func) in ("makedirs", "mkdir", "SummaryWriter") or (
                    other_name == "torch.save"
                ):
                    used = other.args[1 if other_name == "torch.save" and other.args[1:] else 0]
                    if names & names_in(used):
                        yield from self._report("numbered", other, used)

    def _clocked(self, call: ast.Call, path: ast.expr) -> Iterator[Divergence]:
        """Yield a folder whose name each rank takes from its own clock or random numbers."""
        unit = self._unit
        if (
            is_named_by_clock(self._guards, unit, path)
            and not _SHARES_NAME.search(unit.text(unit.node))
            and self._guards.shared_site(unit, call) is not None
        ):
            location = unit.location(call)
            yield Divergence("clocked", location, location, ast.unparse(path), (), by_name=True)

    def _existence(self, node: ast.If | ast.While) -> Iterator[Divergence]:
        """Yield a test of a path by all ranks that another rank changes meanwhile."""
        for test in ast.walk(node.test):
            path = _tested_path(test)
            if path is None or is_guarded(self._unit, node) or is_rank_test(self._unit, node.test):
                continue
            if isinstance(node, ast.While):
                # the next free name: each rank may find another one
                changed = any(
                    isinstance(inner, ast.Assign)
                    and any(ast.unparse(target) == ast.unparse(path) for target in inner.targets)
                    for inner in ast.walk(node)
                )
                if changed and not _is_negated(node.test, test):
                    yield from self._report("counted", node, path)
            elif isinstance(node.body[-1], (ast.Raise, ast.Return)) and self._guarded_write(
                node, path
            ):
                yield from self._report("tested", node, path)

    def _guarded_write(self, test: ast.If, path: ast.expr) -> bool:
        """Return True if one rank writes the path after the test, without waiting in between."""
        name = ast.unparse(path)
        for call in self._unit.nodes:
            if not isinstance(call, ast.Call) or call.lineno <= (test.end_lineno or 0):
                continue
            called = last_name(call.func)
            if WAITING_NAME.search(called):
                return False
            passed = [ast.unparse(arg) for arg in (*call.args, *(k.value for k in call.keywords))]
            if name in passed and _WRITING_NAME.search(called) and is_guarded(self._unit, call):
                return True
        return False


def _downloaded(call: ast.Call, name: str) -> ast.expr | None:
    """Return the path to which a call downloads or extracts files; None for another call."""
    known = FILE_CALLS.get(name)
    if known is not None and known.kind == "downloads":
        return argument(call, known.position, known.keyword)
    if DOWNLOAD_NAME.match(last_name(call.func)) and not _SAFE_DOWNLOAD.search(name):
        target = call.args[1] if len(call.args) > 1 else None
        named = isinstance(target, (ast.Name, ast.Attribute)) and last_name(target)
        return target if named and _TARGET_NAME.search(named) else None
    if last_name(call.func) == "extractall":
        return argument(call, 0, "path")
    if name.startswith("torchvision.datasets.") and is_constant_argument(
        call, "download", answer=True
    ):
        return argument(call, 0, "root")
    return None


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _file_name(unit: Unit, path: ast.expr) -> ast.expr:
    """Return the last part of a path, through a variable that is assigned once."""
    values = unit.assigned(path.id) if isinstance(path, ast.Name) else [path]
    match values:
        case [ast.Call(func=ast.Attribute(attr="join"), args=[_, *_, last])]:
            return last
        case [ast.BinOp(op=ast.Div(), right=last)]:
            return last
        case _:
            return path


def _saves_before(unit: Unit, call: ast.Call, folder: ast.expr | None) -> bool:
    """Return True if a function saves a model to a folder before a call."""
    text = ast.unparse(folder) if folder is not None else ""
    return any(
        last_name(other.func) in ("save_pretrained", "save_model", "makedirs")
        and other.lineno < call.lineno
        and bool(other.args)
        and ast.unparse(other.args[0]) == text
        for other in unit.calls
    )


def _tested_path(node: ast.AST) -> ast.expr | None:
    """Return the path whose existence a call tests."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in EXISTENCE_TESTS:
        return None
    return node.args[0] if node.args else node.func.value


def _tests_existence(test: ast.expr, path: ast.expr) -> bool:
    text = ast.unparse(path)
    for node in ast.walk(test):
        tested = _tested_path(node)
        if tested is not None and ast.unparse(tested) in (text, f"Path({text})"):
            return True
    return False


def _is_negated(test: ast.expr, inner: ast.AST) -> bool:
    return any(
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and inner in ast.walk(node)
        for node in ast.walk(test)
    )


def _runs_make(command: ast.expr) -> bool:
    """Return True for a command line that starts with ``make``."""
    first = command.elts[0] if isinstance(command, ast.List) and command.elts else command
    if isinstance(first, ast.JoinedStr) and first.values:
        first = first.values[0]
    return (
        isinstance(first, ast.Constant)
        and isinstance(first.value, str)
        and first.value.split()[:1] == ["make"]
    )


def _lists_folder(unit: Unit, node: ast.expr) -> bool:
    """Return True for the entries of a folder, or a variable that holds them."""
    values = [node, *(unit.assigned(node.id) if isinstance(node, ast.Name) else ())]
    return any(
        isinstance(inner, ast.Call) and last_name(inner.func) in ("listdir", "glob", "iterdir")
        for value in values
        for inner in ast.walk(value)
    )


def _is_listed(unit: Unit, path: ast.expr) -> bool:
    """Return True if a path was found in a folder, so that other ranks find it, too."""
    remaining, seen = [path], set[str]()
    while remaining:
        value = remaining.pop()
        if _lists_folder(unit, value) or _calls_listing(unit, value):
            return True
        for name in names_in(value) - seen:
            seen.add(name)
            remaining += unit.assigned(name)
            remaining += [
                node.iter
                for node in unit.nodes
                if isinstance(node, (ast.For, ast.comprehension)) and name in names_in(node.target)
            ]
    return False


def _calls_listing(unit: Unit, node: ast.expr) -> bool:
    """Return True for the result of a function or method here that lists a folder."""
    if not _LISTS.search(unit.module.text):
        return False
    own = unit.owner.body if unit.owner is not None else []
    return any(
        isinstance(call, ast.Call)
        and isinstance(statement, FUNCTIONS)
        and statement.name == last_name(call.func)
        and _LISTS.search(unit.text(statement)) is not None
        for call in ast.walk(node)
        for statement in (own if "self." in ast.unparse(node) else unit.module.tree.body)
    )


def _derived_names(unit: Unit, source: ast.AST) -> set[str]:
    """Return the variables computed from an expression."""
    names: set[str] = set()
    for _ in range(3):
        for node in unit.nodes:
            if isinstance(node, ast.Assign) and (
                names & names_in(node.value) or source in ast.walk(node.value)
            ):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names
