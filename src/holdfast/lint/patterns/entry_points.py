"""Decide by names which scripts reach a line, and if one of them starts several ranks.

A package is analyzed without the scripts that use it, so that a function of it is assumed to run on
several ranks if it asks for the rank. Here all files of a repository are searched: a line that only
scripts of one process reach runs in one process. Callers are searched upwards from the line, and
from what starts ranks, so that only files which mention these names are parsed. A caller that
cannot be known, as for what a library offers, leaves the question open.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from holdfast.lint.sources.components import ImportLink, find_links
from holdfast.lint.sources.files import SourceFile
from holdfast.lint.sources.modules import FUNCTIONS, last_name
from holdfast.lint.sources.separate_programs import find_tests

#: What starts several ranks, or joins them.
_START = re.compile(
    r"\b(?:init_process_group|init_parallel_env|init_device_mesh|start_processes|notebook_launcher"
    r"|Accelerator|PartialState|Fabric|LightningCLI|fleet\.init|hvd\.init|initialize_m\w+|spawn"
    r"|\w*init\w*_(?:dist|ddp)\w*|setup_(?:dist|ddp)\w*|DistributedDataParallel"
    r"|deepspeed\.\w+|colossalai\.\w+|MultiprocessingDistributor)\(|\.fit\("
    r"|(?P<trainer>\w*(?:Trainer|TrainingArguments))\b(?=[()])"
)
#: What a script of several ranks reads or asks for itself.
_RANK_USE = re.compile(
    r"\bget_(?:global_|local_)?rank\b|\bis_(?:main_process|global_zero|master)\b|\b(?:LOCAL_)?RANK\b"
    r"|\blocal_rank\b|\ball_(?:reduce|gather)|torchrun|WORLD_SIZE|get_world_size"
    r"|\brank\b *(?:==|!=|>) *0|\bDistributedSampler\b|\baccelerator\."
)
#: A process group of one process, and variables of the environment that say so.
_OF_ONE = re.compile(
    r"\binit\w*\([^()]*\bworld_size *= *1\b[^()]*\)"
    r"|environ(?:\.setdefault\(|\[)[\"'](?:(?:LOCAL_)?RANK|WORLD_SIZE)[\"'](?:, *|\] *= *)"
    r"[\"'][01][\"']"
)
#: A collective that all ranks of a program enter.
_COLLECTIVE = re.compile(r"(?:barrier|all_reduce|all_gather\w*|broadcast|wait_for_everyone)\(")
_ASSERTS_ONE = re.compile(r"^ *assert not [\w.]*distributed\b", re.MULTILINE)
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_MAIN = re.compile(r"""^if +__name__ *== *["']__main__["']""", re.MULTILINE)
#: Maximum number of functions and classes to search for the callers of one line, or of all starts.
_MAX_NODES = 1000


class Definition(msgspec.Struct, frozen=True):
    """A function, method or class of a file, by its position; module-level code without a name."""

    file: int
    owner: str
    name: str


class _Unit(msgspec.Struct, frozen=True):
    """What a definition mentions: variables, attributes, and attributes of imported modules.

    ``waits``: it enters a collective, whatever its arguments and the number of processes.
    """

    definition: Definition
    first: int
    last: int
    names: frozenset[str]
    attributes: frozenset[str]
    of_modules: frozenset[str]
    decorated: bool
    waits: bool


class _Callers(msgspec.Struct, frozen=True):
    """The scripts that reach a definition, if there may be others, and if one on the way waits."""

    scripts: frozenset[int]
    open: bool
    waits: bool = False


class EntryPoints:
    """The scripts of a repository, and what they reach."""

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._texts = [file.content.decode(errors="replace") for file in files]
        self._at = {str(file.path): at for at, file in enumerate(files)}
        self._tests = find_tests(files, range(len(files)))
        self._units: dict[int, list[_Unit]] = {}
        self._imported_names: dict[int, frozenset[str]] = {}
        self._starts: dict[int, list[Definition]] = {}
        self._distributed: dict[int, bool] = {}
        self._callers_of: dict[Definition, list[Definition]] = {}

    def may_run_on_several_ranks(self, file: str, line: int) -> bool:
        """Return False if only scripts that evidently run in one process reach a line."""
        at = self._at.get(file)
        if at is None or file.endswith(".ipynb"):
            return True
        units = self._units_of(at)
        unit = _unit_at(units, line)
        if unit is None:
            return True
        callers = self._callers([unit.definition])
        if callers.open or (callers.scripts and callers.waits):
            return True
        return any(map(self._is_distributed, callers.scripts))

    def _is_distributed(self, script: int) -> bool:
        """Return True if a script uses ranks, or reaches what starts them."""
        if script not in self._distributed:
            text = self._texts[script]
            self._distributed[script] = not _ASSERTS_ONE.search(text) and (
                _RANK_USE.search(_without_single(text)) is not None or self._starts_ranks(script)
            )
        return self._distributed[script]

    def _starts_ranks(self, script: int) -> bool:
        """Return True if a script reaches a start of ranks in the files that it imports."""
        reached = self._closure(script, self._imported)
        starts = [start for at in sorted(reached) for start in self._starts_in(at)]
        return self._callers(starts, reached, script).open

    def _starts_in(self, at: int) -> list[Definition]:
        """Return the definitions of a file that start ranks."""
        if at not in self._starts:
            text = _without_single(self._texts[at])
            lines = {
                text.count("\n", 0, found.start()) + 1
                for found in _START.finditer(text)
                if found["trainer"] not in self._classes
                and not text.startswith("def ", found.start() - 4)
            }
            units = self._units_of(at) if lines else []
            found_units = [unit for line in sorted(lines) if (unit := _unit_at(units, line))]
            self._starts[at] = [unit.definition for unit in found_units]
        return self._starts[at]

    @cached_property
    def _classes(self) -> frozenset[str]:
        """The names of the classes that the files define."""
        return frozenset(name for text in self._texts for name in _CLASS.findall(text))

    @cached_property
    def _links(self) -> list[ImportLink]:
        return [link for link in find_links(self._files) if link.imports]

    @cached_property
    def _imported(self) -> dict[int, set[int]]:
        """The files that each file imports, by position."""
        imported: dict[int, set[int]] = defaultdict(set)
        for link in self._links:
            imported[link.first].add(link.second)
        return imported

    @cached_property
    def _importers(self) -> dict[int, set[int]]:
        """The files that import a file, each by its position."""
        importers: dict[int, set[int]] = defaultdict(set)
        for link in self._links:
            importers[link.second].add(link.first)
        return importers

    def _closure(self, start: int, edges: Mapping[int, Collection[int]]) -> frozenset[int]:
        """Return the files at the end of one or several edges, and the first one."""
        found, pending = {start}, [start]
        while pending:
            for other in edges.get(pending.pop(), ()):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        return frozenset(found)

    def _direct_users(self, at: int) -> set[int]:
        """Return the files that import a file, or a package that offers its names."""
        found, pending = {at}, [at]
        while pending:
            for other in self._importers.get(pending.pop(), ()):
                if other not in found:
                    found.add(other)
                    if self._files[other].path.stem == "__init__":
                        pending.append(other)
        return found

    def _callers(
        self,
        starts: Iterable[Definition],
        within: Collection[int] | None = None,
        searched: int | None = None,
    ) -> _Callers:
        """Return what reaches any of these definitions, ``within`` these files.

        It is open if a caller is unknown; with a script that is ``searched``, if this is found.
        """
        scripts: set[int] = set()
        known = set(starts)
        pending = list(known)
        is_open = False
        while pending:
            if len(known) > _MAX_NODES:
                return _Callers(frozenset(scripts), open=True)
            definition = pending.pop()
            if not definition.owner and not definition.name:
                if definition.file == searched:
                    return _Callers(frozenset(), open=True)
                if self._is_script(definition.file):
                    scripts.add(definition.file)
                else:
                    is_open = True
                continue
            found = self._mentions(definition)
            if not found and definition.owner and definition.name and searched is None:
                # a hook, called by a library
                found = [Definition(definition.file, definition.owner, "")]
            if not found and not self._is_unused(definition):
                is_open = True
            for caller in found:
                if caller not in known and (within is None or caller.file in within):
                    known.add(caller)
                    pending.append(caller)
        waits = searched is None and any(self._waits(definition) for definition in known)
        return _Callers(frozenset(scripts), open=is_open and searched is None, waits=waits)

    def _waits(self, definition: Definition) -> bool:
        units = self._units_of(definition.file)
        return any(unit.waits for unit in units if unit.definition == definition)

    def _is_script(self, at: int) -> bool:
        """Return True for a file with a main part, or that no other file imports."""
        return _MAIN.search(self._texts[at]) is not None or not self._importers.get(at)

    def _is_unused(self, definition: Definition) -> bool:
        """Return True for what no file mentions, beside what others use, or in a script.

        What a library offers is not called either, but nor is what is beside it.
        """
        at, name = definition.file, definition.owner or definition.name
        units = self._units_of(at)
        if any(unit.decorated for unit in units if unit.definition == definition):
            return False
        if _MAIN.search(self._texts[at]):
            return True
        importers = self._importers.get(at, ())
        if not importers:
            return self._is_left_over(at)
        if definition.owner and (
            self._files_of_word.get(name) != [at]
            or f'"{name}"' in self._texts[at]
            or f"'{name}'" in self._texts[at]
        ):
            return False
        others = {unit.definition.owner or unit.definition.name for unit in units} - {"", name}
        return any(not others.isdisjoint(self._imports(other)) for other in importers)

    def _is_left_over(self, at: int) -> bool:
        """Return True for a file that none mentions, beside files that others than it import."""
        path = self._files[at].path
        return len(self._files_of_word.get(path.stem, ())) <= (
            path.stem in self._texts[at]
        ) and any(
            self._files[other].path.parent == path.parent
            and self._importers.get(other, set()) - {at}
            for other in range(len(self._files))
            if other != at
        )

    @cached_property
    def _files_of_word(self) -> dict[str, list[int]]:
        """The files, tests apart, that contain each word."""
        found: dict[str, list[int]] = defaultdict(list)
        for at, text in enumerate(self._texts):
            if at not in self._tests:
                for word in set(_WORD.findall(text)):
                    found[word].append(at)
        return found

    def _mentions(self, definition: Definition) -> Sequence[Definition]:
        """Return the definitions that call a function, method or class, by its name."""
        if definition not in self._callers_of:
            self._callers_of[definition] = list(self._find_mentions(definition))
        return self._callers_of[definition]

    def _find_mentions(self, definition: Definition) -> Iterator[Definition]:
        """Yield the definitions that call a function, method or class, by its name."""
        is_method = bool(definition.owner and definition.name) and not definition.name.startswith(
            "__"
        )
        name = definition.name if is_method or not definition.owner else definition.owner
        direct = self._direct_users(definition.file)
        users = self._closure(definition.file, self._importers) if is_method else direct
        for at in self._files_of_word.get(name, ()):
            if at not in users:
                continue
            by_name = at == definition.file or name in self._imports(at) or "*" in self._imports(at)
            for unit in self._units_of(at):
                if unit.definition == definition or (
                    not is_method and at == definition.file and unit.definition.owner == name
                ):
                    continue
                if (
                    name in unit.attributes
                    if is_method
                    else (by_name and name in unit.names) or name in unit.of_modules
                ):
                    yield unit.definition

    def _imports(self, at: int) -> frozenset[str]:
        """Return the names that a file imports from others."""
        self._units_of(at)
        return self._imported_names[at]

    def _units_of(self, at: int) -> list[_Unit]:
        if at not in self._units:
            self._units[at] = []
            self._imported_names[at] = frozenset()
            try:
                tree = ast.parse(self._files[at].content)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return []
            imports = [
                node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
            ]
            self._imported_names[at] = frozenset(
                alias.name
                for node in imports
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
            )
            bound = frozenset(
                (alias.asname or alias.name).partition(".")[0]
                for node in imports
                for alias in node.names
            )
            self._units[at] = list(_find_units(at, tree, bound))
        return self._units[at]


def _unit_at(units: Iterable[_Unit], line: int) -> _Unit | None:
    """Return the innermost unit around a line; None if the file cannot be parsed."""
    return next((unit for unit in units if unit.first <= line <= unit.last), None)


def _find_units(at: int, tree: ast.Module, bound: frozenset[str]) -> Iterator[_Unit]:
    """Yield functions, methods, the rest of each class, and at last the module-level code."""
    rest: list[ast.AST] = []
    for statement in tree.body:
        if isinstance(statement, FUNCTIONS):
            yield _make_unit(Definition(at, "", statement.name), statement, [statement], bound)
        elif isinstance(statement, ast.ClassDef):
            own: list[ast.AST] = [*statement.bases, *statement.keywords, *statement.decorator_list]
            for inner in statement.body:
                if isinstance(inner, FUNCTIONS):
                    definition = Definition(at, statement.name, inner.name)
                    yield _make_unit(definition, inner, [inner], bound)
                else:
                    own.append(inner)
            yield _make_unit(Definition(at, statement.name, ""), statement, own, bound)
        elif not isinstance(statement, (ast.Import, ast.ImportFrom)):
            rest.append(statement)
    yield _make_unit(Definition(at, "", ""), None, rest, bound)


def _make_unit(
    definition: Definition,
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None,
    parts: Sequence[ast.AST],
    bound: frozenset[str],
) -> _Unit:
    names, attributes, of_modules = set[str](), set[str](), set[str]()
    for part in parts:
        for inner in ast.walk(part):
            if isinstance(inner, ast.Name):
                names.add(inner.id)
            elif isinstance(inner, ast.Attribute):
                attributes.add(inner.attr)
                root: ast.expr = inner
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(root, ast.Name) and root.id in bound:
                    of_modules.add(inner.attr)
    first, last = (node.lineno, node.end_lineno or node.lineno) if node else (1, 1 << 30)
    return _Unit(
        definition,
        first,
        last,
        frozenset(names),
        frozenset(attributes),
        frozenset(of_modules),
        decorated=node is not None and bool(node.decorator_list),
        waits=_enters_collective(node.body if isinstance(node, FUNCTIONS) else list(parts)),
    )


def _enters_collective(body: Sequence[ast.AST]) -> bool:
    """Return True for a collective that no test or earlier exit keeps a process from entering."""
    for statement in body:
        if isinstance(statement, (ast.If, ast.Try)):
            if any(isinstance(inner, ast.Return) for inner in ast.walk(statement)):
                return False
        elif isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(
            statement.value, ast.Call
        ):
            name = last_name(statement.value.func)
            if _COLLECTIVE.fullmatch(f"{name}("):
                return True
    return False


def _without_single(text: str) -> str:
    """Return the text with calls that start a process group of one process left blank."""
    return _OF_ONE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
