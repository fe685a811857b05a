"""Groups of commands that know their commands from a table, and import the one that is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from holdfast.errors import InternalError, UnknownName

#: Command -> the module that holds it as ``command``, and its line in the help of the group.
Table = Mapping[str, tuple[str, str]]


class TableGroup(click.Group):
    """A group whose ``--help`` costs nothing but its table."""

    def __init__(self, *, table: Table, **options: Any) -> None:
        super().__init__(**options)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The names, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:  # noqa: ARG002 - click's signature
        """The command of a name. Raises UnknownName."""
        if cmd_name not in self.table:
            raise UnknownName("command", cmd_name, self.table)
        found = import_module(self.table[cmd_name][0]).command
        if not isinstance(found, click.Command):
            raise InternalError(f"{self.table[cmd_name][0]}.command is no command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the table's lines."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])
