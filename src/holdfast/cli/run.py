"""``holdfast run``: torchrun's command line, plus recorder, watcher, verdicts and restarts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec

from holdfast.cli.language import LANGUAGES
from holdfast.cli.torchrun_options import (
    TORCHRUN_OPTIONS,
    leading_options,
    torchrun_flags,
    torchrun_words,
)
from holdfast.core import settings
from holdfast.core.errors import InvalidValue, UnknownName, UsageError
from holdfast.core.exit_status import ERRORS_FOUND, OK, USAGE

#: Presets whose further variables are decided from this host when a job starts.
_NETWORKS = ("infiniband", "roce", "ethernet")


def _print_presets() -> None:
    """Print every preset: values for one worker per node with reasons, or the user's settings."""
    for preset in settings.PRESETS:
        click.echo(preset)
        if preset in _NETWORKS:
            click.echo(
                "  the interface, adapters and sockets for this host and the rendezvous, as\n"
                f"      holdfast env --profile {preset} --rdzv-endpoint HOST:PORT"
            )
        for reading in settings.preset_readings(preset, workers=1):
            reason = reading.why or f"kept as you set it ({reading.origin})"
            click.echo(f"  {reading.name}={reading.value}\n      {reason}")


def _print_limits(options: argparse.Namespace) -> None:
    from holdfast.launcher.limits import list_limits

    limits = list_limits(vars(options))
    name_width, value_width = (max(len(row[column]) for row in limits) for column in (0, 1))
    for limit in limits:
        name, value = limit.name.ljust(name_width), limit.value.ljust(value_width)
        click.echo(f"{name}  {value}  {limit.origin}")


class _PresetAction(argparse.Action):
    """Makes ``--preset help`` print the presets even if other arguments are missing."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        value: Any,
        _: Any = None,
    ) -> None:
        if value == "help":
            _print_presets()
            parser.exit()
        setattr(namespace, self.dest, value)


class _LanguageAction(argparse.Action):
    """Chooses the language for this process and the watcher."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's signature
        namespace: argparse.Namespace,
        value: Any,
        _: Any = None,
    ) -> None:
        settings.set_variable("HOLDFAST_LANG", value)
        setattr(namespace, self.dest, value)


def _option(metavar: str, text: str, **more: Any) -> Mapping[str, Any]:
    """Return argparse's arguments of an option with a value."""
    return {"metavar": metavar, "help": text, **more}


def _flag(text: str) -> Mapping[str, Any]:
    """Return argparse's arguments of an option without a value."""
    return {"action": "store_true", "help": text}


#: holdfast's own options: flag -> arguments of argparse. `--help` prints this table.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--preset": _option(
        "NAME",
        f"Set unset variables from a preset: {', '.join(settings.PRESETS)}; several with commas. "
        "help explains them.",
        action=_PresetAction,
    ),
    "--on-hang": _option(
        "WHAT",
        "Action on a hang: report, restart (within --max-restarts, then stop) or stop "
        "(default: restart).",
        default="restart",
    ),
    "--act-after": _option(
        "TIME",
        "Time without progress before holdfast acts on a suspected hang that may still recover "
        "(default: 60s); the suspicion is reported within seconds.",
    ),
    "--max-failures": _option(
        "N",
        "Stop after more than N failures within --window; without --max-restarts, total restarts "
        "are then unlimited.",
    ),
    "--window": _option("TIME", "Time window of --max-failures (default: 1h).", default="1h"),
    "--max-idle": _option(
        "N",
        "Exit with status 93 after N restarts in a row without a newer checkpoint (default: 3).",
        default="3",
    ),
    "--backoff": _option(
        "TIME",
        "Initial backoff between restarts without progress; doubles each time (default: 1s).",
        default="1s",
    ),
    "--exclude-stragglers": _flag("Exclude persistently slow hosts if enough others remain."),
    "--skip-batches": _flag(
        "Skip the batch at which the same exception or crash recurred. Changes the training data."
    ),
    "--allow-fresh-start": _flag(
        "Train from step 0 although checkpoints were saved earlier or copies cannot be searched."
    ),
    "--no-gate": _flag("Skip the host health gate."),
    "--inject": _option(
        "FAULT",
        "Inject a fault, e.g. hang@rank=2,step=30. Repeatable. `holdfast chaos` lists faults.",
        action="append",
        default=[],
    ),
    "--group-timeout": _option(
        "TIME",
        "Default process-group timeout when the script sets none, e.g. 20m; for new_group too.",
    ),
    "--alert": _option(
        "URL",
        "Send failure notifications to an Apprise URL (slack://, mailto://, json://) or to the "
        "URLs in @FILE. Repeatable.",
        action="append",
        default=[],
    ),
    "--alert-test": _flag("Send a test alert to every receiver of --alert, and exit; no script."),
    "--lang": _option(
        "LANG",
        "Language of cause summaries, remedies and labels, en or zh (default: $HOLDFAST_LANG, or "
        "your locale's).",
        action=_LanguageAction,
        choices=LANGUAGES,
    ),
    "--json-report": _option("FILE", "Write the verdict as JSON at the end.", type=Path),
    "--serve": _option(
        "[HOST:]PORT",
        "While the job runs, its leader serves its page, metrics and `holdfast top` at this "
        "address; 0: a free port.",
    ),
    "--run-dir": _option("DIR", "Parent folder of the run's folder (default: holdfast-runs)."),
    "--history": _option(
        "DIR",
        "Directory for failure history shared across restarts and requeues of this job (under "
        "Slurm: automatic for requeued jobs).",
    ),
    "--spares": _option(
        "KIND",
        "Standby workers for restarts: off, warm (imports done) or cuda (GPU opened too); "
        "default: warm.",
    ),
    "--prefix": _option(
        "WHEN",
        "Prefix printed lines with their rank: auto (on a terminal, once a second rank prints), "
        "always or never (default: auto).",
        default="auto",
    ),
    "--limits": _flag("Print every time limit of this run with its origin, and exit."),
    "--recorder": _option(
        "KIND", "Recorder: auto, native (compiled), python or off (default: auto)."
    ),
}


_RECOVERY_OPTIONS = (
    "--on-hang --act-after --max-failures --window --max-idle --backoff --exclude-stragglers "
    "--skip-batches --allow-fresh-start --no-gate --spares"
)
_SEE_HELP = "see holdfast run --help"


#: Whether a value follows each of holdfast's own options.
_OWN_VALUES = {"-h": False, "--help": False, **{f: "metavar" in row for f, row in OPTIONS.items()}}


def _leading_options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    return leading_options(arguments, _OWN_VALUES)


def _explain_unknown_option(error: InvalidValue, arguments: Sequence[str]) -> UsageError:
    """Return an error with similar options if the parser rejected an unknown option.

    The parser may complain about something else, such as a script that it took for the value.
    """
    name = next((name for name, full in _leading_options(arguments) if not full), None)
    if name is None:
        return error
    unknown = UnknownName("option", name, (*OPTIONS, *torchrun_flags()))
    step = unknown.next_step if unknown.near else _SEE_HELP
    unknown.next_step = f"{step} (options of the script follow its name)"
    return unknown


def _run_torchrun(error: ImportError, arguments: Sequence[str]) -> NoReturn:
    """Let torchrun replace this process if a later torch lacks a module or name of the agent."""
    if not (error.name or "").startswith("torch.distributed"):
        raise error
    click.echo(
        f"holdfast: this torch is not supported ({error}): torchrun runs the job, without verdicts "
        "and without holdfast's options; docs/compatibility.md lists the supported versions",
        err=True,
    )
    words = ("-m", "torch.distributed.run", *torchrun_words(arguments, _OWN_VALUES))
    os.execv(sys.executable, (sys.executable, *words))  # noqa: S606 - the words are separate


def _test_alerts(arguments: Sequence[str]) -> int:
    """Send a test alert to each receiver, print the results, and return the exit status."""
    from holdfast.launcher.alerts import Alerts, read_alert_request

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--alert", action="append", default=[])
    urls = parser.parse_known_args(list(arguments))[0].alert
    alerts = Alerts(read_alert_request(urls, "RUN", None), click.echo)
    results = list(alerts.test())
    for name, delivered in results:
        click.echo(f"{name}: {'delivered' if delivered else 'NOT delivered'}")
    if not results:
        step = "add --alert URL, or set HOLDFAST_ALERTS"
        raise UsageError("there is no receiver of alerts", next_step=step)
    return OK if all(delivered for _, delivered in results) else ERRORS_FOUND


class _TorchrunCommand(click.Command):
    """Passes all arguments to torch's parser, which separates them from the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        general = {name: option for option in self.params for name in option.opts}
        ctx.args = list(args)
        while ctx.args and ctx.args[0] in general:
            general[ctx.args.pop(0)].process_value(ctx, value=True)
        return []

    def format_help(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(
            "holdfast run", "[HOLDFAST AND TORCHRUN OPTIONS] SCRIPT [SCRIPT ARGUMENTS]"
        )
        formatter.write_paragraph()
        formatter.write_text(
            "Run a training job like torchrun; diagnose hangs and failures, and restart the job."
        )
        formatter.write_paragraph()
        formatter.write_text("Accepts every torchrun argument (it uses torch's own parser).")
        own = {
            flag: (f"{flag} {row.get('metavar', '')}".rstrip(), row["help"])
            for flag, row in OPTIONS.items()
        }
        recovery = [own.pop(flag) for flag in _RECOVERY_OPTIONS.split()]
        theirs = {
            group: [(f"{', '.join(flags)} {value}".rstrip(), text) for flags, value, text in rows]
            for group, rows in TORCHRUN_OPTIONS.items()
        }
        for group, rows in {
            "Failures and restarts": recovery,
            "Other options": list(own.values()),
            **theirs,
        }.items():
            with formatter.section(group):
                formatter.write_dl(rows)


@click.command(cls=_TorchrunCommand)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Run a training job like torchrun; diagnose hangs and failures, and restart the job."""
    arguments = ctx.args
    if not arguments or any(full in ("-h", "--help") for _, full in _leading_options(arguments)):
        click.echo(ctx.get_help())
        return OK if arguments else USAGE
    if any(full == "--alert-test" for _, full in _leading_options(arguments)):
        return _test_alerts(arguments)
    if arguments[:1] == ["--preset=help"] or arguments[:2] == ["--preset", "help"]:
        _print_presets()  # as _PresetAction does, but without importing torch
        return OK

    try:
        from holdfast.launcher.elastic import command_line
        from holdfast.launcher.job import RunRequest, run_job
    except ImportError as error:
        _run_torchrun(error, arguments)
    try:
        # The parser needs a script, which is not used then.
        prints_limits = any(full == "--limits" for _, full in _leading_options(arguments))
        words = [*arguments, "script"] if prints_limits else arguments
        options = command_line.parse_run_options(words, OPTIONS)
    except InvalidValue as error:
        raise _explain_unknown_option(error, arguments) from None
    if options.limits:
        _print_limits(options)
        return OK
    from holdfast.launcher.messages import print_message
    from holdfast.serve.store.background import BackgroundIndexer

    request = msgspec.convert(vars(options), RunRequest)
    return run_job(options, request, BackgroundIndexer(print_message))
