"""Click groups that list commands from a table and import a command's module when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from holdfast.cli.general_options import add_general_options, print_traceback_if_verbose
from holdfast.core.errors import HoldfastError, InternalError, UnknownName

#: Command -> the module with ``command``, and its line in the group's help.
Table = Mapping[str, tuple[str, str]]


def _step_after(name: str, group: str) -> str | None:
    """Return what to do instead of the unknown command ``name`` of ``group``, if it is clear."""
    if name == "help":
        return f"use: {group} --help"
    return f"run a script with: holdfast run {name}" if name.endswith(".py") else None


class TableGroup(click.Group):
    """A group whose ``--help`` imports no command."""

    def __init__(self, *, table: Table, **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Return the command. Raises UnknownName."""
        if cmd_name not in self.table:
            step = _step_after(cmd_name, ctx.command_path)
            raise UnknownName("command", cmd_name, self.table, next_step=step)
        command = import_module(self.table[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise InternalError(f"{self.table[cmd_name][0]}.command is not a click command")
        return add_general_options(command)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the root prints the traceback of its error with ``--verbose``."""
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            if ctx.parent is None:
                print_traceback_if_verbose(error)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the lines of the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])
