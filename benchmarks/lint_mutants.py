"""Mutation testing of ``holdfast lint``: which mechanical breaks of correct programs it reports.

Usage: ``python -m benchmarks.lint_mutants FOLDER... [--operator NAME] [--limit N] [--strict] [-v]``

FOLDER is a repository, or a folder with ``cases`` as in benchmarks/lint_cases.py, whose fixed and
correct programs are mutated. Operators (benchmarks/lint_mutant_operators.py) change one place of a
file that uses torch.distributed. At most N mutants per operator and FOLDER are chosen, by a fixed
seed. A mutant is linted with the files that the changed file imports, and those that import it. It
is found if a finding that the original does not have is in the changed function, or cites a line of
it. Mutants are not real bugs: they show in which contexts a known kind of bug is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from benchmarks.lint_cases import fixed_files
from benchmarks.lint_mutant_operators import OPERATORS, NamedOperator
from benchmarks.mutable_source import MutableSource
from holdfast.lint.analysis import RuleFinding, analyze_files
from holdfast.lint.sources.components import find_links
from holdfast.lint.sources.files import SourceFile, gather_files
from holdfast.report.source_findings import parse_location

#: Bytes of other files that are linted with a mutant.
_MAX_CONTEXT_BYTES = 100_000
_DISTRIBUTED_WORD = re.compile(rb"distributed|barrier|synchronize|all_reduce|is_main|rank")
#: Rules about what no operator changes.
_OTHER_RULES = frozenset({
    "hot-loop-sync", "unsafe-load", "nonatomic-save", "device-not-set", "unread-variable",
    "ignored-time-limit", "init-order", "group-left-at-exit", "equal-seeds",
})  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A changed file of a program: by which operator, where and in which context."""

    operator: NamedOperator
    program: Sequence[SourceFile]
    at: int
    line: int
    context: str
    text: str

    @property
    def place(self) -> str:
        """Return the file and line of the change."""
        return f"{self.program[self.at].path}:{self.line}"


@dataclass(frozen=True)
class ScoredMutant:
    """A mutant and the findings that its original does not have, near it and elsewhere."""

    mutant: Mutant
    near: tuple[RuleFinding, ...]
    elsewhere: tuple[RuleFinding, ...]


def find_programs(folder: Path) -> list[list[SourceFile]]:
    """Return the correct programs of a folder of labelled cases, or the files of a repository."""
    if not (folder / "cases").is_dir():
        return [list(gather_files([folder]).files)]
    programs = []
    for case in sorted((folder / "cases").glob("*/case.json")):
        fixed = fixed_files(case.parent, json.loads(case.read_text()))
        programs.append(list(gather_files(list(fixed), unsaved=fixed).files))
    for path in sorted(folder.glob("negatives/*")):
        if path.is_dir() or path.suffix == ".py":
            files = [path] if path.is_file() else sorted(path.glob("*.py"))
            programs.append(list(gather_files(files).files))
    return programs


def make_mutants(
    programs: Iterable[Sequence[SourceFile]], operators: Sequence[NamedOperator], limit: int
) -> list[Mutant]:
    """Return at most ``limit`` mutants for each operator, at different places."""
    found: dict[str, list[Mutant]] = defaultdict(list)
    for program in programs:
        sources = {
            at: source
            for at, file in enumerate(program)
            if _may_be_mutated(file) and (source := _parse(file)) is not None
        }
        wrappers = frozenset(chain.from_iterable(one.own_wrappers for one in sources.values()))
        for at, source in sources.items():
            known = dataclasses.replace(source, wrappers=wrappers)
            for mutant in _mutate_file(program, at, known, operators):
                found[mutant.operator.name].append(mutant)
    chosen = []
    for name, mutants in found.items():
        picked = random.Random(name).sample(  # noqa: S311 - a repeatable choice
            range(len(mutants)), min(limit, len(mutants))
        )
        chosen += [mutants[index] for index in sorted(picked)]
    return chosen


def _may_be_mutated(file: SourceFile) -> bool:
    """Return True for a file, not a test, that mentions torch and a word of distributed code."""
    if file.path.suffix != ".py" or "test" in file.path.stem:
        return False
    return b"torch" in file.content and bool(_DISTRIBUTED_WORD.search(file.content))


def _parse(file: SourceFile) -> MutableSource | None:
    return MutableSource.parse(file.content.decode(errors="replace"))


def _mutate_file(
    program: Sequence[SourceFile],
    at: int,
    source: MutableSource,
    operators: Sequence[NamedOperator],
) -> Iterator[Mutant]:
    for operator in operators:
        for mutation in operator.mutate(source):
            text = source.apply(mutation)
            if text is not None:
                context = source.context(mutation.old[0])
                yield Mutant(operator, program, at, mutation.line, context, text)


class MutantLinter:
    """Lints mutants with the files around the changed one, and each original once."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._links: dict[int, dict[int, set[int]]] = {}
        self._originals: dict[str, Counter[tuple[str, str, str]]] = {}

    def score(self, mutant: Mutant) -> ScoredMutant:
        """Return the findings of a mutant that its original does not have."""
        members = self._members(mutant)
        files = [mutant.program[at] for at in members]
        path = str(mutant.program[mutant.at].path)
        if path not in self._originals:
            original = _scopes(files)
            self._originals[path] = Counter(
                _key(finding, original) for finding in self._lint(files)
            )
        changed = [
            msgspec.structs.replace(file, content=mutant.text.encode()) if at == mutant.at else file
            for at, file in zip(members, files, strict=True)
        ]
        scope_at = _scopes(changed)
        before = self._originals[path].copy()
        near, elsewhere = [], []
        for finding in self._lint(changed):
            key = _key(finding, scope_at)
            before[key] -= 1
            if before[key] >= 0:
                continue
            scope = scope_at(path, mutant.line)
            places = [(finding.finding.subject.file or "", finding.finding.subject.line or 0)]
            places += [parse_location(fact.origin) for fact in finding.finding.evidence]
            here = any(file == path and scope_at(file, line) == scope for file, line in places)
            (near if here or mutant.operator.anywhere else elsewhere).append(finding)
        return ScoredMutant(mutant, tuple(near), tuple(elsewhere))

    def _lint(self, files: Sequence[SourceFile]) -> list[RuleFinding]:
        return [
            finding
            for finding, suppressed in analyze_files(files, strict=self._strict).findings
            if not suppressed and finding.rule not in _OTHER_RULES
        ]

    def _members(self, mutant: Mutant) -> list[int]:
        """Return the changed file and the nearest files that import it or that it imports."""
        program = mutant.program
        links = self._links.get(id(program))
        if links is None:
            links = self._links[id(program)] = defaultdict(set)
            for link in find_links(program):
                if link.imports:
                    links[link.first].add(link.second)
                    links[link.second].add(link.first)
        reached, pending, size = {mutant.at}, [mutant.at], 0
        while pending:
            for neighbor in sorted(links.get(pending.pop(0), ())):
                size += len(program[neighbor].content) if neighbor not in reached else 0
                if neighbor not in reached and size <= _MAX_CONTEXT_BYTES:
                    reached.add(neighbor)
                    pending.append(neighbor)
            if size > _MAX_CONTEXT_BYTES:
                break
        return sorted(reached)


ScopeAt = Callable[[str, int], str]


def _scopes(files: Sequence[SourceFile]) -> ScopeAt:
    """Return the function that names the scope of a file and line."""
    contents = {str(file.path): file.content for file in files}
    parsed: dict[str, MutableSource | None] = {}

    def scope_at(file: str, line: int) -> str:
        if file not in parsed:
            text = contents.get(file, b"").decode(errors="replace")
            parsed[file] = MutableSource.parse(text)
        source = parsed[file]
        return source.scope_name(line) if source is not None else ""

    return scope_at


def _key(finding: RuleFinding, scope_at: ScopeAt) -> tuple[str, str, str]:
    file, line = finding.finding.subject.file or "", finding.finding.subject.line or 0
    return finding.rule, file, scope_at(file, line)


def main(arguments: Sequence[str] = ()) -> int:
    """Lint mutants of all folders, and print how many are found by operator and context."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lint_mutants", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--operator", choices=[operator.name for operator in OPERATORS])
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args(arguments)
    missing = [folder for folder in options.folders if not folder.is_dir()]
    if missing:
        print(f"{missing[0]}: no such folder", file=sys.stderr)
        return 2
    operators = [one for one in OPERATORS if options.operator in (None, one.name)]
    start = time.process_time()
    scores = []
    for folder in options.folders:
        linter = MutantLinter(strict=options.strict)
        for mutant in make_mutants(find_programs(folder), operators, options.limit):
            scores.append(linter.score(mutant))
            if options.verbose:
                print(_describe(scores[-1]), flush=True)
    _print_table("operator", scores, lambda score: score.mutant.operator.name)
    _print_table("context", scores, lambda score: score.mutant.context)
    print(f"{len(scores)} mutants in {time.process_time() - start:.0f} s of CPU")
    return 0


def _describe(score: ScoredMutant) -> str:
    """Describe a mutant's outcome in one line."""
    rules = ", ".join(sorted({finding.rule for finding in score.near or score.elsewhere}))
    outcome = "found" if score.near else "elsewhere" if score.elsewhere else "MISSED"
    return f"{outcome:9} {score.mutant.operator.name:27} {score.mutant.place} {rules}".rstrip()


def _print_table(
    title: str, scores: Sequence[ScoredMutant], group: Callable[[ScoredMutant], str]
) -> None:
    rows = defaultdict(list)
    for score in scores:
        rows[group(score)].append(score)
    print(f"{title:32} mutants  found")
    for name, members in sorted(rows.items()):
        print(f"  {name:30} {len(members):7}  {sum(bool(score.near) for score in members):5}")
    print(f"  {'all':30} {len(scores):7}  {sum(bool(score.near) for score in scores):5}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
