"""What every command has in common: general options, remarks, and paths checked before the work."""

from __future__ import annotations

import os
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from holdfast import __version__
from holdfast.core.errors import MissingExtra, MissingFile
from holdfast.core.settings import disable_colors
from holdfast.core.similar_paths import similar_path

_VERBOSITY = "holdfast.verbosity"
_VERSION = f"holdfast {__version__}"


def _set_verbosity(ctx: click.Context, option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        ctx.meta[_VERBOSITY] = -1 if option.name == "quiet" else 1


def _disable_colors(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value:
        ctx.color = False
        disable_colors()


def general_options(*, hidden: bool) -> list[click.Option]:
    """Return the options that every command accepts; only the root command shows them."""
    shared: dict[str, Any] = {"is_flag": True, "expose_value": False, "hidden": hidden}
    return [
        click.Option(
            ["-q", "--quiet"],
            callback=_set_verbosity,
            help="Print results and errors only: no progress, no remarks.",
            **shared,
        ),
        click.Option(
            ["-v", "--verbose"],
            callback=_set_verbosity,
            help="Also print the Python traceback of an error.",
            **shared,
        ),
        click.Option(
            ["--no-color"],
            callback=_disable_colors,
            help="Print no colors, as if NO_COLOR was set.",
            **shared,
        ),
        click.Option(
            ["-V", "--version"],
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
            **shared,
        ),
    ]


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's signature
    if value and not ctx.resilient_parsing:
        click.echo(_VERSION)
        ctx.exit()


def add_general_options(command: click.Command) -> click.Command:
    """Let a command accept the general options, as the root command does."""
    if not any(option.name == "no_color" for option in command.params):
        command.params.extend(general_options(hidden=True))
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        add_general_options(each)
    return command


def verbosity() -> int:
    """Return -1 with ``--quiet``, 1 with ``--verbose``, else 0."""
    context = click.get_current_context(silent=True)
    return 0 if context is None else int(context.meta.get(_VERBOSITY, 0))


def remark(text: str) -> None:
    """Print a line on stderr that is neither a result nor an error, unless ``--quiet`` is set."""
    if verbosity() >= 0:
        click.echo(text, err=True)


def print_traceback_if_verbose(error: Exception) -> None:
    """Print the traceback of the user's or the machine's error if ``--verbose`` is set."""
    if verbosity() > 0:
        traceback.print_exception(error)


def require_torch() -> None:
    """Raise MissingExtra if torch is not installed, before a command starts ranks."""
    if find_spec("torch") is None:
        raise MissingExtra("torch")


def suggest_path(error: MissingFile) -> MissingFile:
    """Add the most similar existing path to an error about a path that does not exist."""
    path = Path(error.subject)
    if error.next_step == MissingFile.next_step and not path.exists():
        near = similar_path(path)
        if near is not None:
            error.next_step = f"did you mean {near}?"
    return error


class InputPath(click.Path):
    """A file or folder that must be readable before the work starts."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002 - click's signature
        ctx: click.Context | None,  # noqa: ARG002 - as above
    ) -> str:
        """Return the path. Raises MissingFile if it cannot be read."""
        if not Path(value).exists():
            raise MissingFile(value)
        if not os.access(value, os.R_OK):
            raise MissingFile(value, why="permission denied")
        return str(value)


class OutputFile(click.Path):
    """A file to write: its folder must exist and be writable before the work starts."""

    name = "file"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002 - click's signature
        ctx: click.Context | None,  # noqa: ARG002 - as above
    ) -> Path:
        """Return the path. Raises MissingFile if it cannot be written."""
        path = Path(value)
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise _unwritable(path, "it is a folder")
        if not target.parent.is_dir():
            raise _unwritable(path, "its folder does not exist")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise _unwritable(path, "permission denied")
        return path


class OutputFolder(click.Path):
    """A folder to write into, which is created if it does not exist."""

    name = "folder"

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,  # noqa: ARG002 - click's signature
        ctx: click.Context | None,  # noqa: ARG002 - as above
    ) -> Path:
        """Return the path. Raises MissingFile if it cannot be created or written."""
        path = Path(value)
        existing = path.absolute()
        while not existing.exists():
            existing = existing.parent
        if not existing.is_dir():
            raise _unwritable(path, f"{existing} is not a folder")
        if not os.access(existing, os.W_OK):
            raise _unwritable(path, "permission denied")
        return path


def _unwritable(path: Path, why: str) -> MissingFile:
    return MissingFile(path, why=why, next_step="choose a path in a writable folder")


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups: title -> names of options."""

    def __init__(self, *, groups: dict[str, str], **options: Any) -> None:
        super().__init__(**options)
        self.groups = groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section for each group, and the other options last."""
        rows = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                rows[max(option.opts, key=len)] = record
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(f"--{name}") for name in names.split()])
        if rows:
            with formatter.section("Options"):
                formatter.write_dl(list(rows.values()))
