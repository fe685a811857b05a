"""The code blocks of the documentation: their kinds, and how they are run.

All blocks of a page are run in order, in one process and one folder, which begins with the files
that ``tests/doc_inputs.py`` names. A block that cannot be run is preceded by
``<!-- not run: REASON -->``. The others, by language:

- Python is executed as the only rank of a job, with the names of ``tests/doc_names.py``; with a
  title it is saved as a file for the blocks below.
- Shell: each ``holdfast`` command is called in this process; those of ``NOT_RUN`` and those of
  blocks that are not run are parsed with all their options.
- Output (``text``) is that of the block above, or of the ``$`` lines in it. It is compared without
  line breaks and durations; a line ``…`` stands for any lines.
- Configuration is parsed, and read by what reads it in holdfast (``READERS``).

``python -m tests.doc_pages`` prints the number of blocks of each kind, and the reasons.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import textwrap
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import click
import yaml

from holdfast import cli
from holdfast.causes import all_causes
from holdfast.cli.run import OPTIONS
from tests.doc_inputs import FILES, MORE_NAMES, OWN_NAMES, STAND_INS

ROOT = Path(__file__).parents[1]
NAMES, EXAMPLES = (Path(__file__).with_name(name) for name in ("doc_names.py", "doc_files"))
FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+(?P=indent))?"
    r'```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^(?P=indent)```$',
    re.MULTILINE | re.DOTALL,
)
SHELL = {"sh", "bash", "console"}
CONFIGURATION = {"toml", "yaml", "json", "sql"}
#: Commands that are only parsed, and why.
NOT_RUN = {
    "run": "starts a job: tests/process",
    "attach": "looks for jobs of this machine: tests/process",
    "bench": "measures for seconds: tests/process/bench",
    "check": "reads this machine for seconds: tests/unit/preflight",
    "checklist": "reads this machine for seconds: tests/unit/preflight",
    "chaos": "breaks jobs for minutes: tests/unit/chaos, make chaos",
    "submit": "needs a scheduler: tests/unit/launcher",
    "serve": "serves until it is stopped: tests/unit/serve",
    "top": "runs until it is stopped: tests/unit/serve",
}
#: Words of commands that are only parsed, and why.
NOT_RUN_WITH = {
    "--follow": "runs until it is stopped",
    "--watch": "runs until it is stopped",
    "train.py:build_model": "imports torch in a process of its own: tests/unit/plan",
}
#: Pages of figures, which `python -m benchmarks` measures.
MEASURED = {"docs/benchmarks.md"}
#: Pages whose blocks another test runs or generates.
TESTED_BY = {
    "docs/tour": "tests/process/test_tour.py",
    "docs/examples.md": "tests/process/examples/test_broken_and_fixed.py",
    "examples/[!r]*/": "tests/process/examples/test_broken_and_fixed.py",
    "examples/rank0_evaluation/": "tests/process/examples/test_broken_and_fixed.py",
    "docs/commands.md": "tests/unit/cli/test_root.py",
    "docs/migration.md": "tests/unit/plan/generate/test_migration_guide.py",
    "docs/causes/": "tests/unit/causes/test_catalogue.py",
    "docs/rules/": "tests/unit/lint/rules/test_rules.py",
}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str
    text: str
    reason: str

    @property
    def name(self) -> str:
        """Return where it is."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return all pages, relative to the repository; those in Chinese have the same blocks."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = (str(each.relative_to(ROOT)) for each in found if ".zh" not in each.name)
    return sorted(name for name in names if name != "CHANGELOG.md")


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, match.start("language")) + 1,
            match["language"],
            match["title"] or "",
            textwrap.dedent(match["text"]),
            match["reason"] or "",
        )
        for match in FENCE.finditer(text)
    ]


def tested_elsewhere(page: str) -> str:
    """Return what tests or measures the blocks of a page; empty if they are run here."""
    if page in MEASURED:
        return "measured by benchmarks"
    tests = (test for name, test in TESTED_BY.items() if fnmatch(page, f"{name}*"))
    return next((f"tested by {test}" for test in tests), "")


def kind_of(block: Block) -> str:
    """Return how a block is tested. Raises KeyError for a language without a rule."""
    if elsewhere := tested_elsewhere(block.page):
        return elsewhere
    commands = [words for line, _ in lines_of(block) for words in commands_in(line)]
    kinds = dict.fromkeys(SHELL, "parsed") | dict.fromkeys(CONFIGURATION, "configuration read")
    kinds |= {"python": "executed", "text": "output compared", "diff": "applied"}
    if block.reason:
        return "parsed, not run" if commands or block.language != "text" else "recorded, not run"
    if block.title:
        return "saved for the next block"
    if block.language in SHELL and any(is_run(line) for line, _ in lines_of(block)):
        return "executed"
    return kinds[block.language]


# ---- lines of shell


def lines_of(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command line with the output that the block shows after it."""
    text = block.text.replace("\\\n", " ")
    if block.language in SHELL - {"console"}:
        for line in text.splitlines():
            yield re.sub(r"\s+# .*", "", line).strip(), ""
    elif block.language in {"console", "text"}:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            yield re.sub(r"\s+# .*", "", line), output


def commands_in(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each command of holdfast in a line of shell, without those with …"""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("|&;<>"):
            words.append(word)
            continue
        at = words.index("holdfast") + 1 if "holdfast" in words else 0
        # Not `pip install holdfast`; a misspelled command is one if it is the first word.
        if at and "…" not in line and (at == 1 or {*words[at : at + 1]} & {*cli.COMMANDS}):
            yield words[at:]
        words = []


def is_run(line: str) -> bool:
    """Return whether a line is called in this process: a command without placeholders."""
    words = line.split()
    runs = words[:1] == ["holdfast"] and words[1] not in NOT_RUN
    return runs and not {*NOT_RUN_WITH} & {*words} and not set("…{>&;") & {*line}


# ---- running a page, in a process of its own


class PageRun:
    """Runs the blocks of one page in the working folder."""

    def __init__(self, page: str, cache: str = "") -> None:
        self.printed, self.cache = "", cache
        self.names: dict[str, object] = {"__name__": "page"}
        for name, source in FILES.get(page, {}).items():
            place(Path(name), source)

    def run(self, block: Block) -> None:
        """Run, compare or parse a block. Raises an error if it is wrong."""
        if block.language in SHELL:
            subprocess.run(["bash", "-n"], input=without_prompt(block), text=True, check=True)
        if block.reason:
            self.check_only(block)
        elif block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            self.execute(block)
        elif block.language == "diff":
            for removed in "+-":
                sides = [each for each in block.text.splitlines() if not each.startswith(removed)]
                ast.parse("\n".join(line[1:] for line in sides))
        elif block.language in CONFIGURATION:
            read_configuration(block)
        elif lines := list(lines_of(block)):
            self.run_lines(lines)
        else:
            assert_shown(block.text, self.printed)

    def check_only(self, block: Block) -> None:
        if block.language == "python":
            ast.parse(block.text)
        for line, _ in lines_of(block):
            parse_commands(line)

    def execute(self, block: Block) -> None:
        """Execute Python as the only rank of a job."""
        if block.page not in OWN_NAMES and "torch" not in self.names:
            os.environ["HOLDFAST_CACHE"] = self.cache  # not before: `holdfast env` would print it
            code = NAMES.read_text() + MORE_NAMES.get(block.page, "")
            exec(compile(code, NAMES.name, "exec"), self.names)
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(with_stand_ins(block.text), block.name, "exec"), self.names)
        self.printed = printed.getvalue()

    def run_lines(self, lines: Iterable[tuple[str, str]]) -> None:
        self.printed = ""
        for line, output in lines:
            if output:
                self.printed = ""
            if line.startswith("export "):
                os.environ.update(word.split("=", 1) for word in shlex.split(line)[1:])
            elif is_run(line):
                self.printed += run_command(line, may_fail=bool(output))
            else:
                parse_commands(line)
            if output:
                assert_shown(output, self.printed)


def place(target: Path, source: str) -> None:
    """Copy a file of ``FILES``: into an archive, if its name is that of one, or out of ``:``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    archived, _, member = source.partition(":")
    if target.suffix == ".gz":
        with tarfile.open(target, "w:gz") as archive:
            archive.add(EXAMPLES / source, Path(source).name)
    elif member:
        with tarfile.open(EXAMPLES / archived) as archive:
            archive.extractall("archive", filter="data")
        Path("archive", member).rename(target)
        if target.stem == "flipped":
            content = bytearray(target.read_bytes())
            content[len(content) * 2 // 7] ^= 1  # in a weight
            target.write_bytes(content)
    else:
        shutil.copy(EXAMPLES / source, target)


def without_prompt(block: Block) -> str:
    if block.language != "console":
        return block.text
    return "\n".join(line for line, _ in lines_of(block))


def with_stand_ins(text: str) -> str:
    for name, used in STAND_INS.items():
        text = re.sub(rf"""(?<=["'\s=]){re.escape(name)}""", used, text)
    return text


def assert_shown(expected: str, printed: str) -> None:
    """Raise an error unless the words of each part between lines ``…`` are in the output, in order."""
    rest = comparable(printed)
    for part in re.split(r"^\s*…$", expected, flags=re.MULTILINE):
        words = comparable(part)
        assert words in rest, f"the page shows\n{part}\nbut this was printed\n{printed}"
        rest = rest[rest.index(words) + len(words) :]
    assert expected.split(), "the page shows nothing"


def comparable(text: str) -> str:
    """Return a text without its line breaks and durations."""
    return re.sub(r"\b[\d.,]+ (s|ms)\b", "N s", " ".join(text.split()))


def run_command(line: str, *, may_fail: bool) -> str:
    """Return the output of ``holdfast … [| PROGRAM …]``."""
    command, _, program = with_stand_ins(line).partition(" | ")
    words = [
        each
        for word in shlex.split(command)[1:]
        for each in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]
    status, printed = call_holdfast(words)
    assert may_fail or status in {0, 1, 3}, f"{line}: exit status {status}: {printed}"
    if program and shutil.which(program.split()[0]):
        done = subprocess.run(
            program, shell=True, input=printed, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done.stderr}"
        printed = done.stdout
    return printed


def call_holdfast(words: list[str]) -> tuple[int, str]:
    """Return the exit status and the output of a command, called in this process."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with redirect_stdout(out), redirect_stderr(out):
        try:
            cli.main(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return status, out.buffer.getvalue().decode()


def parse_commands(line: str) -> None:
    """Parse each command of a line with its options and their values, without running it."""
    for words in commands_in(with_stand_ins(line)):
        with patch.object(click.Command, "invoke", parse_run):
            status, printed = call_holdfast(words)
        assert status == 0, f"{line}: {printed}"


def parse_run(_: click.Command, context: click.Context) -> int:
    """Take the place of a command that is only parsed."""
    if context.command_path == "holdfast run":
        from holdfast.launcher.elastic.command_line import parse_run_options

        script = [] if not {"--alert-test", "--limits"} & {*context.args} else ["script"]
        parse_run_options([*context.args, *script], OPTIONS)
    return 0


def read_configuration(block: Block) -> None:
    """Parse it, and read it as holdfast does."""
    match block.language:
        case "json":
            json.loads(block.text)
        case "yaml":
            list(yaml.safe_load_all(block.text))
        case "toml":
            tomllib.loads(block.text)
    file = Path("configuration", "pyproject.toml")  # the name that the linter reads
    file.parent.mkdir(exist_ok=True)
    file.write_text(block.text)
    if reader := READERS.get((block.page, block.language)):
        reader(file)


def read_lint_options(file: Path) -> None:
    from holdfast.lint.options import load_configuration

    assert load_configuration([file.absolute()]).ignore


def read_items(file: Path) -> None:
    from holdfast.preflight.checklists.items import read_items

    assert read_items(file)


def read_timeouts(file: Path) -> None:
    from holdfast.training.collectives.timeouts import read_policy_file

    assert read_policy_file(file)


def read_groups(file: Path) -> None:
    from holdfast.training.heterogeneous.config import parse_heterogeneous

    assert parse_heterogeneous(file.read_text(), file.name)


def query_store(file: Path) -> None:
    from sqlalchemy import create_engine, text

    from holdfast.serve.store.tables import StoreBase

    with create_engine("sqlite://").connect() as store:
        StoreBase.metadata.create_all(store)
        store.execute(text(file.read_text()))


#: What reads the configuration of a page.
READERS: dict[tuple[str, str], Callable[[Path], None]] = {
    ("docs/checklists.md", "toml"): read_items,
    ("docs/collectives.md", "toml"): read_timeouts,
    ("docs/heterogeneous.md", "yaml"): read_groups,
    ("docs/history.md", "sql"): query_store,
    ("docs/lint.md", "toml"): read_lint_options,
}


def run_page(page: str, cache: str) -> None:
    """Run all blocks of a page in the working folder; the cache has compiled extensions."""
    run = PageRun(page, cache)
    for block in blocks_of(page):
        try:
            run.run(block)
        except BaseException as error:
            error.add_note(f"in the block at {block.name}")
            raise


def parse_remedies() -> None:
    """Parse the commands of all causes, which their pages show."""
    for cause in all_causes():
        for remedy in cause.remedies:
            parse_commands(remedy.command or "")


def census() -> Counter[tuple[str, str]]:
    """Return the number of blocks of each kind and reason."""
    return Counter((kind_of(block), block.reason) for page in pages() for block in blocks_of(page))


if __name__ == "__main__":
    for (kind, reason), count in sorted(census().items()):
        click.echo(f"{count:4} {kind}{reason and ': '}{reason}")
