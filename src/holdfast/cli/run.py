"""``holdfast run``: torchrun's command line, and around the job a recorder, a watcher, verdicts and restarts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from holdfast import settings
from holdfast.errors import BadValue


def _explain_presets() -> None:
    """Every preset, with each variable's value (for one worker a node) and the reason, or what the user has instead."""
    for preset in settings.PRESETS:
        click.echo(preset)
        for reading in settings.preset_readings(preset, workers=1):
            reason = reading.why or f"stays as you set it ({reading.origin})"
            click.echo(f"  {reading.name}={reading.value}\n      {reason}")


class _Preset(argparse.Action):
    """``--preset help`` explains, like ``--help``, whatever else is missing from the command line."""

    def __call__(self, parser: argparse.ArgumentParser, given: argparse.Namespace, value: Any, _: Any = None) -> None:
        if value == "help":
            _explain_presets()
            parser.exit()
        setattr(given, self.dest, value)


#: Our options, beside those of torchrun: flag -> what argparse needs to know. `--help` prints this table.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--preset": {
        "metavar": "NAME", "action": _Preset,
        "help": f"Set what you left unset: {', '.join(settings.PRESETS)}; help explains them.",
    },
    "--on-hang": {
        "metavar": "WHAT", "default": "restart",
        "help": "report, restart or stop (restart: while --max-restarts allows, then stop).",
    },
    "--max-failures": {
        "metavar": "N", "help": "Stop at more failures than this within --window; without --max-restarts, restarts in "
        "all are then not limited.",
    },
    "--window": {"metavar": "TIME", "default": "1h", "help": "Window of --max-failures (1h)."},
    "--max-idle": {
        "metavar": "N", "default": "3",
        "help": "Stop, with status 93, after so many restarts in a row that brought no newer checkpoint (3).",
    },
    "--backoff": {
        "metavar": "TIME", "default": "1s",
        "help": "Wait before the second restart in a row that brought nothing, doubled for each after it (1s).",
    },
    "--exclude-stragglers": {"action": "store_true", "help": "Go on without a slow host where others suffice."},
    "--skip-batches": {
        "action": "store_true",
        "help": "Leave out the batch at which the same exception or crash came again: it changes what is trained on.",
    },
    "--no-gate": {"action": "store_true", "help": "Let every host take part, whatever its GPUs and ports say."},
    "--inject": {
        "metavar": "FAULT", "action": "append", "default": [],
        "help": "Cause a fault, such as hang@rank=2,step=30; may be repeated. `holdfast chaos` lists them.",
    },
    "--group-timeout": {
        "metavar": "TIME",
        "help": "Time limit of process groups for which the script names none, such as 20m; new_group too.",
    },
    "--alert": {
        "metavar": "URL", "action": "append", "default": [],
        "help": "Tell people of failures: slack://…, mailto://…, json://…, or @FILE with one a line; may be repeated.",
    },
    "--json-report": {"metavar": "FILE", "type": Path, "help": "Write the verdict there, for scripts, at the end."},
    "--run-dir": {"metavar": "DIR", "help": "Folder for the run's folder (default: holdfast-runs)."},
    "--history": {
        "metavar": "DIR", "help": "Keep there what failed and what was done, over all runs of this job, until it ends "
        "well; under Slurm a requeued job has one by itself.",
    },
    "--spares": {
        "metavar": "KIND",
        "help": "Processes kept ready for a restart: off, warm (imports done) or cuda (GPU opened too); default warm.",
    },
    "--recorder": {"metavar": "KIND", "help": "auto, native (compiled), python or off."},
}  # fmt: skip


class _Raw(click.Command):
    """Leaves all arguments to torch's parser, which knows where the script's own begin."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        formatter.write_usage("holdfast run", "[OPTIONS, OURS AND TORCHRUN'S] SCRIPT [ARGUMENTS OF THE SCRIPT]")
        formatter.write_paragraph()
        formatter.write_text("Run a training job as torchrun does, watch it, name the stuck rank, restart it.")
        formatter.write_paragraph()
        formatter.write_text("Every argument of torchrun is accepted, because torch's own parser reads them.")
        with formatter.section("Options in addition"):
            formatter.write_dl(
                [(f"{flag} {row.get('metavar', '')}".rstrip(), row["help"]) for flag, row in OPTIONS.items()]
            )


@click.command(cls=_Raw)
@click.pass_context
def command(ctx: click.Context) -> int:
    """Run a training job as torchrun does, watch it, name the stuck rank, restart it."""
    arguments = ctx.args
    if arguments[:1] in ([], ["-h"], ["--help"]):
        click.echo(ctx.get_help())
        return 0 if arguments else BadValue.exit_status
    if arguments[:1] == ["--preset=help"] or arguments[:2] == ["--preset", "help"]:
        _explain_presets()  # as _Preset does, but without torch
        return 0

    from holdfast.actions.job import Wish, run
    from holdfast.runtime import torchrun

    given = torchrun.parse(arguments, OPTIONS)
    wish = Wish(preset=given.preset, on_hang=given.on_hang, inject=tuple(given.inject),
                alert=tuple(given.alert), json_report=given.json_report, run_dir=given.run_dir, recorder=given.recorder,
                group_timeout=given.group_timeout, max_failures=given.max_failures, window=given.window,
                max_idle=given.max_idle, backoff=given.backoff, exclude_stragglers=given.exclude_stragglers,
                gate=not given.no_gate, history=given.history, skip_batches=given.skip_batches)  # fmt: skip
    return run(given, wish)
