"""Options that all schedulers share, and the words of ``holdfast run``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.cli.general_options import OutputFile
from holdfast.core.errors import InvalidValue, MissingFile, UnknownName

_Function = TypeVar("_Function", bound=Callable[..., Any])
#: Options of ``holdfast run`` that the scheduler's file sets.
_SET_HERE = {
    "--nnodes": "use --nodes of `holdfast submit`",
    "--nproc-per-node": "write it before the `--`, as an option of `holdfast submit`",
    "--run-dir": "write it before the `--`, as an option of `holdfast submit`",
    "--standalone": "remove it",
    **dict.fromkeys(
        ("--node-rank", "--master-addr", "--master-port"),
        "remove it: the nodes find each other by the scheduler's list",
    ),
    **dict.fromkeys(
        ("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id"),
        "remove it: the nodes find each other by the scheduler's list",
    ),
}
#: Options that make the script a module or a program.
_NOT_A_FILE = {"-m", "--module", "--no-python"}


def options(command: _Function) -> _Function:
    """Add the shared options and the words of the job."""
    for option in reversed(
        (
            click.option("--name", help="Name of the job [default: that of the script]."),
            click.option(
                "--nodes",
                metavar="N",
                type=click.IntRange(1),
                default=1,
                show_default=True,
                help="Nodes of the job.",
            ),
            click.option(
                "--nproc-per-node",
                "workers",
                metavar="N",
                type=click.IntRange(1),
                default=1,
                show_default=True,
                help="Workers per node, usually one per GPU.",
            ),
            click.option(
                "--warning",
                metavar="TIME",
                default="120s",
                show_default=True,
                help="Time to save between the scheduler's signal and the end of the job.",
            ),
            click.option(
                "--no-gate", is_flag=True, help="Do not run `holdfast check` before each start."
            ),
            click.option(
                "--env",
                "environment",
                metavar="NAME=VALUE",
                multiple=True,
                help="Environment variable of the job. Repeatable.",
            ),
            click.option("--write", metavar="FILE", type=OutputFile(), help="Write the file, too."),
            click.option("--dry-run", is_flag=True, help="Print the file; submit nothing."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object."),
            click.argument(
                "words",
                metavar="[--] [RUN OPTIONS] SCRIPT [ARGUMENTS]…",
                nargs=-1,
                required=True,
                type=click.UNPROCESSED,
            ),
        )
    ):
        command = option(command)
    return command


def script_of(words: Sequence[str], *, on_this_host: bool) -> str:
    """Return the script among the words of ``holdfast run``.

    Raises:
        UnknownName: an unknown option of ``holdfast run``.
        InvalidValue: an option that the scheduler's file sets, or no script.
        MissingFile: there is no such script, where it is read from this host's disks.
    """
    from holdfast.cli.run import OPTIONS
    from holdfast.cli.torchrun_options import leading_words, torchrun_flags

    values = {flag: "metavar" in row for flag, row in OPTIONS.items()}
    flags, script = leading_words(words, values)
    for name, full in flags:
        if not full:
            raise UnknownName("option", name, (*OPTIONS, *torchrun_flags()))
        if full in _SET_HERE:
            raise InvalidValue(
                name, why="`holdfast submit` sets it for every node", next_step=_SET_HERE[full]
            )
    if not script:
        raise InvalidValue(
            "the command line",
            why="no script follows the options",
            next_step="add SCRIPT at the end",
        )
    is_file = not _NOT_A_FILE & {full for _, full in flags}
    if on_this_host and is_file and not Path(script).exists():
        raise MissingFile(script)
    return script


def job_fields(chosen: Mapping[str, Any], script: str) -> dict[str, Any]:
    """Return the fields of ``JobRequest`` from the shared options. Raises InvalidValue."""
    from holdfast.core import settings
    from holdfast.launcher.submission.request import default_name

    seconds = settings.parse_time(chosen["warning"])
    if seconds is None:
        raise InvalidValue(
            "--warning",
            why=f"{chosen['warning']!r} is not a duration",
            next_step="use e.g. 120s or 5m",
        )
    return {
        "name": chosen["name"] or default_name(script),
        "run_words": tuple(chosen["words"]),
        "nodes": chosen["nodes"],
        "workers": chosen["workers"],
        "warning_s": round(seconds),
        "gate": not chosen["no_gate"],
        "environment": tuple(_variable(text) for text in chosen["environment"]),
    }


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.replace("_", "a").isalnum() or name[:1].isdigit():
        raise InvalidValue(
            "--env", why=f"{text!r} is not NAME=VALUE", next_step="use e.g. NCCL_DEBUG=WARN"
        )
    return name, value


def finish(
    scheduler: str, file: str, chosen: Mapping[str, Any], submit: Callable[[str], str]
) -> int:
    """Write, print or submit the file; return the exit status."""
    from holdfast.core.atomic_files import write_atomic
    from holdfast.report.json import envelope, write_json

    if chosen["write"]:
        write_atomic(chosen["write"], file.encode())
    job = None if chosen["dry_run"] else submit(file)
    if chosen["as_json"]:
        more = {"scheduler": scheduler, "file": file, "job": job}
        write_json(sys.stdout, envelope("submit", (), None, **more))
    elif job is None:
        click.echo(file, nl=False)
    else:
        click.echo(f"holdfast: submitted to {scheduler}: {job}")
    return 0
