"""The command line: one file a command, about fifty lines, readable as a recipe of facts, rules and a report.

This file is the root command. It imports a command's module when that command is called (``table``), so that
``holdfast --help`` costs little and needs neither torch nor rich nor numpy. A command's module holds a click command
named ``command``; what that returns is the exit status (nothing means 0). A package is a command with commands.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from holdfast import __version__
from holdfast.cli.table import Table, TableGroup
from holdfast.errors import HoldfastError, InternalError, MissingExtra, UsageError, WorldError

INTERRUPTED = 130

#: Command -> the module that holds it, and its line in ``holdfast --help``.
COMMANDS: Table = {
    "env": ("holdfast.cli.env", "Audit the variables of a job: what nobody reads, or reads as something else."),
    "check": ("holdfast.cli.check", "Look at this host before a job: what would stop it, slow it down, or is unseen."),
    "bench": ("holdfast.cli.bench", "Measure collectives: how fast ranks talk, and whether results are right."),
    "lint": ("holdfast.cli.lint", "Find dead-locks in source code: collectives that not all ranks reach."),
    "plan": ("holdfast.cli.plan", "Plan a run: does it fit, how fast is it, on which GPUs, and what would be better?"),
    "run": ("holdfast.cli.run", "Run a training job as torchrun does, watch it, name the stuck rank, restart it."),
    "history": ("holdfast.cli.history", "Tell what happened to a run over all its restarts, and what was decided."),
    "attach": ("holdfast.cli.attach", "Look into a job that hangs now: who waits, who does not, and at which line."),
    "report": ("holdfast.cli.report", "Put all evidence of a run into one archive, without secrets, to hand on."),
    "diagnose": ("holdfast.cli.diagnose", "Find the root cause in logs, dumps, boxes, or archives of them."),
    "ckpt": ("holdfast.cli.ckpt", "Look into checkpoints of any framework: inspect, verify, convert, diff."),
    "explain": ("holdfast.cli.explain", "Explain a cause of failure, or an environment variable."),
    "chaos": ("holdfast.cli.chaos", "List the faults that can be injected, or hurt a job with them on purpose."),
}


@click.group(cls=TableGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def root() -> None:
    """Keep distributed PyTorch training running, and say why when it stops."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (``sys.argv`` without ``arguments``) and end the process with the command's exit status."""
    try:
        status = root.main(
            args=None if arguments is None else list(arguments), prog_name="holdfast", standalone_mode=False
        )
    except click.ClickException as mistake:
        mistake.show()
        status = mistake.exit_code
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except ModuleNotFoundError as missing:
        status = _say(MissingExtra("torch")) if missing.name == "torch" else _own_up(missing)
    except (UsageError, WorldError) as error:
        status = _say(error)
    except Exception as bug:  # noqa: BLE001 - every other error is a bug of ours
        status = _own_up(bug)
    status = status if isinstance(status, int) else 0
    if arguments is None and sys.modules.get("torch") is not None:
        from holdfast.runtime.leaving import leave

        leave(status)
    sys.exit(status)


def _say(error: HoldfastError) -> int:
    """Print the error's one sentence on stderr; the exit status that goes with it."""
    click.echo(f"holdfast: {error}", err=True)
    return error.exit_status


def _own_up(bug: Exception) -> int:
    """Print the traceback of a bug of ours, and say what it is; status 1 would claim that something was found."""
    traceback.print_exception(bug)
    return _say(bug if isinstance(bug, InternalError) else InternalError(f"{type(bug).__name__}: {bug}"))
