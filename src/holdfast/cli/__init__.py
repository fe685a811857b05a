"""The command line: one module per command, which parses options, calls one function, and renders.

This file is the root command. It imports a command's module only when that command is called, so
that ``holdfast --help`` is fast and needs neither torch nor rich nor numpy. A command's module has
a click command named ``command`` whose return value is the exit status (None: 0). A package is a
group.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from holdfast.cli.command_table import Table, TableGroup
from holdfast.cli.general_options import general_options, suggest_path
from holdfast.cli.language import language_option
from holdfast.core.errors import (
    HoldfastError,
    InternalError,
    MissingExtra,
    MissingFile,
    UsageError,
    WorldError,
)
from holdfast.core.text import os_error_reason

INTERRUPTED = 130
#: Status of a process that SIGPIPE ended, as shells report it: 128 + 13.
CLOSED_PIPE = 141
#: Errors of a write to standard output that ends on a full disk, in a closed pipe or terminal.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EPIPE, errno.EIO)

#: Command -> its module, and its line in ``holdfast --help``.
COMMANDS: Table = {
    "env": (
        "holdfast.cli.env",
        "Audit environment variables: unused, misspelled, misparsed.",
    ),
    "check": (
        "holdfast.cli.check",
        "Run preflight checks on this host or all nodes.",
    ),
    "checklist": (
        "holdfast.cli.checklist",
        "Run a checklist: before the start, while a job runs, after a failure, for speed or tools.",
    ),
    "bench": (
        "holdfast.cli.bench",
        "Benchmark collectives and verify their results.",
    ),
    "lint": (
        "holdfast.cli.lint",
        "Find deadlocks in source code: collectives that not all ranks reach.",
    ),
    "plan": (
        "holdfast.cli.plan",
        "Predict memory use and throughput of a training run, and suggest improvements.",
    ),
    "run": (
        "holdfast.cli.run",
        "Run a training job like torchrun; diagnose hangs and failures, and restart the job.",
    ),
    "submit": (
        "holdfast.cli.submit",
        "Submit a training job to Slurm or Kubernetes, or write its file.",
    ),
    "history": (
        "holdfast.cli.history",
        "Show a run's timeline across restarts: causes, progress, and actions taken.",
    ),
    "serve": (
        "holdfast.cli.serve",
        "Serve a web page and metrics of runs, live and past.",
    ),
    "top": (
        "holdfast.cli.top",
        "Watch the ranks of a run in the terminal.",
    ),
    "attach": (
        "holdfast.cli.attach",
        "Inspect a running, hung job.",
    ),
    "report": (
        "holdfast.cli.report",
        "Create a shareable debug bundle with secrets redacted.",
    ),
    "diagnose": (
        "holdfast.cli.diagnose",
        "Find the root cause in logs, flight-recorder dumps, trace files, or archives of them.",
    ),
    "ckpt": (
        "holdfast.cli.ckpt",
        "Inspect, verify, convert and diff checkpoints of any framework.",
    ),
    "explain": ("holdfast.cli.explain", "Explain a cause of failure, a lint rule or a variable."),
    "chaos": (
        "holdfast.cli.chaos",
        "List injectable faults, or run fault-injection tests.",
    ),
}


@click.group(
    cls=TableGroup,
    table=COMMANDS,
    params=[*general_options(hidden=False)],
    # as wide as the terminal
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 10_000},
)
@language_option
def root() -> None:
    """Keep distributed PyTorch training running, and find out why it stops.

    \b
    holdfast lint train.py             before a job: find deadlocks in its source
    holdfast run [OPTIONS] train.py    run the job, with the options of torchrun
    holdfast attach                    inspect a job that hangs now
    holdfast diagnose LOGS             find out why a job failed
    holdfast COMMAND --help            show the options of a command

    Every command accepts the options below.
    """  # noqa: D301 - \b: click keeps the line breaks


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (default: ``sys.argv``) and exit with the command's exit status."""
    try:
        status = _run(arguments)
        sys.stdout.flush()
    except OSError as error:
        status = _end_output(error)
    if arguments is None and sys.modules.get("torch") is not None:
        from holdfast.launcher.elastic.process_exit import exit_without_teardown

        exit_without_teardown(status)
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int:
    """Print errors; return the exit status. Raises OSError if the output cannot be written."""
    output, errors = sys.stdout, sys.stderr
    try:
        status = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="holdfast",
            standalone_mode=False,
        )
    except click.ClickException as mistake:
        mistake.show()
        status = mistake.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except SystemExit:
        if sys.stdout is output:
            raise
        sys.stdout, sys.stderr = output, errors  # click replaces them if a pipe is closed
        raise BrokenPipeError(errno.EPIPE, "closed") from None
    except ModuleNotFoundError as missing:
        status = (
            _print_error(MissingExtra("torch")) if missing.name == "torch" else _report_bug(missing)
        )
    except (UsageError, WorldError) as error:
        status = _print_error(suggest_path(error) if isinstance(error, MissingFile) else error)
    except Exception as bug:
        if isinstance(bug, OSError) and bug.errno in _OUTPUT_ERRORS and bug.filename is None:
            raise
        status = _report_bug(bug)
    return status if isinstance(status, int) else 0


def _end_output(error: OSError) -> int:
    """Discard what standard output does not accept; return the exit status."""
    with contextlib.suppress(OSError):  # a stream without a file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    return _print_error(WorldError("cannot write the output", why=os_error_reason(error)))


def _print_error(error: HoldfastError) -> int:
    """Print the error on stderr; return its exit status."""
    with contextlib.suppress(OSError):  # stderr is closed or its disk is full
        click.echo(f"holdfast: {error}", err=True)
    return error.exit_status


def _report_bug(bug: Exception) -> int:
    """Print the traceback of a bug of holdfast; return its exit status."""
    traceback.print_exception(bug)
    return _print_error(
        bug if isinstance(bug, InternalError) else InternalError(f"{type(bug).__name__}: {bug}")
    )
