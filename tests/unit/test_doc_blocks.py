"""Names in the documentation exist: of commands in sentences, of Python in blocks, of files in links.

``test_doc_pages.py`` runs the blocks. Blocks of output are marked as ``text``.
"""

from __future__ import annotations

import ast
import re
import textwrap
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

import holdfast
from holdfast.cli import COMMANDS, root
from holdfast.cli.run import OPTIONS
from holdfast.cli.torchrun_options import leading_options
from tests.doc_pages import CONFIGURATION, SHELL, commands_in

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / "README.md", ROOT / "README.zh.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "api").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
#: A block without a fence, which is neither marked nor checked.
INDENTED = re.compile(r"\n\n( {4}\S.*)")
INLINE = re.compile(r"`(holdfast [a-z][^`]*)`")
LANGUAGES = SHELL | CONFIGURATION | {"python", "text", "diff"}
PACKAGE = ROOT / "src" / "holdfast"


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """Return the language and text of each block."""
    return [(info.split(" ")[0], text) for info, text in BLOCK.findall(page.read_text())]


def check_command(words: list[str]) -> None:
    """Raise an error if a command or an option does not exist."""
    # With its settings: click keeps the help option that a command got from its first context.
    context = click.Context(root, info_name="holdfast", **root.context_settings)
    rest = root.make_parser(context).parse_args(args=list(words))[1]
    if not rest or "…" in rest[0]:
        return
    assert rest[0] in COMMANDS, rest
    if rest[0] == "run":
        check_run(rest[1:])
    else:
        check_options(import_module(COMMANDS[rest[0]][0]).command, rest, context)


def check_run(words: list[str]) -> None:
    own = {flag: "metavar" in row for flag, row in OPTIONS.items()}
    for written, full in leading_options(words, {"-h": False, "--help": False, **own}):
        assert full, f"holdfast run has no option {written}"


def check_options(command: Any, words: list[str], parent: click.Context) -> None:
    if words[:2] == ["bench", "scaling"]:
        command, words = import_module("holdfast.cli.bench_scaling").scaling, words[1:]
    context = click.Context(command, info_name=words[0], parent=parent)
    context.allow_extra_args = True
    rest = command.make_parser(context).parse_args(args=words[1:])[1]
    if isinstance(command, click.Group) and rest:
        if rest[0] in command.list_commands(context):
            check_options(command.get_command(context, rest[0]), rest, context)
        else:
            assert words[0] == "history", f"no command {words}"  # its argument is a run


def check_python(text: str) -> None:
    """Raise an error if the text is no Python, or uses a name that holdfast does not have."""
    for node in ast.walk(ast.parse(textwrap.dedent(text))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast"):
            names = names_of(str(node.module))
            assert {each.name for each in node.names} <= names, node.module
        elif isinstance(node, ast.Attribute) and (path := path_of(node)).startswith("holdfast."):
            check_path(path.split(".")[1:])
        elif isinstance(node, ast.Call) and (path := path_of(node.func)).startswith("holdfast."):
            check_keywords(path.split(".")[1:], [each.arg for each in node.keywords if each.arg])


def check_path(parts: list[str]) -> None:
    """Check ``holdfast.NAME`` and ``holdfast.MODULE.NAME`` without an import of torch."""
    assert parts[0] in {*holdfast.__all__, "training"}, parts
    if parts[0] in holdfast._MODULES and len(parts) > 1:
        assert parts[1] in names_of(holdfast._LAZY[parts[0]]), parts


def check_keywords(parts: list[str], used: list[str]) -> None:
    """Check the keyword arguments of a call, unless the function takes any."""
    module = holdfast._LAZY[parts[0]]
    if parts[0] in holdfast._MODULES:
        tree = ast.parse(source_of(module).read_text())
        imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        module = next(
            (str(each.module) for each in imports if parts[1] in {n.name for n in each.names}),
            module,
        )
    functions = functions_of(ast.parse(source_of(module).read_text()), parts[-1])
    if functions and not any(each.args.kwarg for each in functions):
        names = {arg.arg for each in functions for arg in (*each.args.args, *each.args.kwonlyargs)}
        assert set(used) <= names, parts


def functions_of(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    """Return a function with its overloads, or the constructor of a class."""
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
    for each in tree.body:
        if isinstance(each, ast.ClassDef) and each.name == name:
            functions = [part for part in each.body if isinstance(part, ast.FunctionDef)]
            name = "__init__"
    return [each for each in functions if each.name == name]


def path_of(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{path_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def names_of(module: str) -> set[str]:
    """Return the names of a module of holdfast, from its source and its submodules."""
    if module == "holdfast":
        return set(holdfast.__all__)
    source = source_of(module)
    package = source.name == "__init__.py"
    names = {each.stem for each in source.parent.glob("*.py")} if package else set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Constant) and package:
            names.add(str(node.value))  # `__all__`, tables of lazy names
    return names


def source_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_is_valid(page):
    for language, text in blocks_of(page):
        assert language in LANGUAGES, f"unmarked block (output is `text`): {text[:60]!r}"
        if language == "python":
            check_python(text)
    assert not INDENTED.findall(FENCED.sub("", page.read_text())), "a block without a fence"
    for text in INLINE.findall(BLOCK.sub("", page.read_text())):
        for words in commands_in(text):
            with suppress(click.BadOptionUsage):  # prose may name an option without its value
                check_command(words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page):
    for target in LINK.findall(BLOCK.sub("", page.read_text())):
        assert (page.parent / target).exists(), target


def test_the_checks_can_fail():
    for words in (["run", "--no-such-option", "train.py"], ["lint", "--nothing"], ["lynt"]):
        with pytest.raises((AssertionError, click.UsageError)):
            check_command(words)
    for text in (
        "holdfast.comm.all_reduced(loss)",
        "holdfast.comm.agree(stop, within=5)",
        "from holdfast import nothing",
        "def",
    ):
        with pytest.raises((AssertionError, SyntaxError)):
            check_python(text)


def test_the_reference_has_every_public_name():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    listed = set(re.findall(r"^(?:::: | +heading: )holdfast\.(\S+)$", pages, re.MULTILINE))
    modules = {name: holdfast._LAZY[name] for name in holdfast._MODULES}
    public = {name for name in holdfast.__all__ if name not in {*modules, "__version__"}}
    for name, module in modules.items():
        source = PACKAGE.joinpath(*module.split(".")[1:], "__init__.py").read_text()
        match = re.search(r"^__all__ = (\[.*?\])", source, re.MULTILINE | re.DOTALL)
        assert match is not None
        public |= {f"{name}.{each}" for each in ast.literal_eval(match[1])}
    assert public <= listed
