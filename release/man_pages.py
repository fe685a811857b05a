"""Write a man page for every command: ``make man``, or ``python -m release.man_pages DIR``.

The pages are the ``--help`` texts; ``man ./holdfast-run.1`` shows one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from holdfast import __version__
from holdfast.cli import COMMANDS, root

OPTIONS = root.context_settings | {"terminal_width": 78, "max_content_width": 78}


def man_pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the text of every page."""
    context = click.Context(root, info_name="holdfast", **OPTIONS)
    commands = ", ".join(f"holdfast-{name}(1)" for name in COMMANDS)
    yield (
        "holdfast.1",
        _page("holdfast", "keep distributed PyTorch training running", root, context, commands),
    )
    for name, (module, line) in COMMANDS.items():
        yield from _below(import_module(module).command, name, line, context)


def _below(
    command: click.Command, name: str, line: str, parent: click.Context
) -> Iterator[tuple[str, str]]:
    """Yield the page of a command, and those of its subcommands."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    title = context.command_path.replace(" ", "-")
    yield f"{title}.1", _page(title, line, command, context, "holdfast(1)")
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None:
                yield from _below(below, each, below.get_short_help_str(70), context)


def _page(
    title: str, line: str, command: click.Command, context: click.Context, related: str
) -> str:
    body = "\n".join(_escape(row) for row in command.get_help(context).splitlines())
    return (
        f'.TH "{title.upper()}" "1" "" "holdfast {__version__}" "holdfast"\n'
        f".SH NAME\n{title} \\- {_escape(line.rstrip('.'))}\n"
        f".SH SYNOPSIS AND OPTIONS\n.nf\n{body}\n.fi\n"
        f".SH SEE ALSO\n{_escape(related)}\n"
    )


def _escape(line: str) -> str:
    r"""Escape what roff reads as a request: backslash, hyphen, ``.`` or ``'`` at the start."""
    escaped = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist/man")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in man_pages():
        (folder / file).write_text(text, encoding="utf-8")
    print(f"{folder}: {len(list(folder.glob('*.1')))} pages")
