"""The command line: one module per command, which parses options, calls one function, and renders.

This file is the root command. It imports a command's module only when that command is called, so
that ``holdfast --help`` is fast and needs neither torch nor rich nor numpy. A command's module has
a click command named ``command`` whose return value is the exit status (None: 0). A package is a
group.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from holdfast import __version__
from holdfast.cli.command_table import Table, TableGroup
from holdfast.cli.language import language_option
from holdfast.core.errors import HoldfastError, InternalError, MissingExtra, UsageError, WorldError

INTERRUPTED = 130

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
    cls=TableGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
@language_option
def root() -> None:
    """Keep distributed PyTorch training running, and find out why it stops."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (default: ``sys.argv``) and exit with the command's exit status."""
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
    except ModuleNotFoundError as missing:
        status = (
            _print_error(MissingExtra("torch")) if missing.name == "torch" else _report_bug(missing)
        )
    except (UsageError, WorldError) as error:
        status = _print_error(error)
    except Exception as bug:  # noqa: BLE001 - every other error is a bug of holdfast
        status = _report_bug(bug)
    status = status if isinstance(status, int) else 0
    if arguments is None and sys.modules.get("torch") is not None:
        from holdfast.launcher.elastic.process_exit import exit_without_teardown

        exit_without_teardown(status)
    sys.exit(status)


def _print_error(error: HoldfastError) -> int:
    """Print the error on stderr; return its exit status."""
    click.echo(f"holdfast: {error}", err=True)
    return error.exit_status


def _report_bug(bug: Exception) -> int:
    """Print the traceback of a bug of holdfast; return its exit status."""
    traceback.print_exception(bug)
    return _print_error(
        bug if isinstance(bug, InternalError) else InternalError(f"{type(bug).__name__}: {bug}")
    )
