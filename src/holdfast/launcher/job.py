"""Run ``holdfast run`` on this node: from the request to the exit status."""

from __future__ import annotations

import argparse
import atexit
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core import settings
from holdfast.core.errors import HoldfastError, InvalidValue, MissingFile, UnknownName
from holdfast.core.findings import Level
from holdfast.host.checks import CheckContext
from holdfast.host.variable_audit import audit_environment
from holdfast.launcher import past_runs
from holdfast.launcher.agent import NodeAgent
from holdfast.launcher.alerts import Alerts, read_alert_request
from holdfast.launcher.elastic import command_line
from holdfast.launcher.elastic.run_job import FAILED, launch
from holdfast.launcher.host_gate import HostGate
from holdfast.launcher.messages import LaunchPlan, print_message
from holdfast.launcher.policy import OnHang, RecoveryOptions
from holdfast.launcher.presets import apply_preset, unread_loader_settings
from holdfast.launcher.recovery import Recovery, RunObserver
from holdfast.launcher.terminal.connection import Prefix
from holdfast.launcher.watcher_channel import WatcherChannel
from holdfast.recorder import faults, parse_duration
from holdfast.report import json as json_report
from holdfast.training.compiled_extensions import prepare_extensions
from holdfast.watcher.live_port import parse_address
from holdfast.watcher.run_folder import RunFolder

#: --max-restarts if only --max-failures is set.
UNLIMITED_RESTARTS = 10_000


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options besides torchrun's arguments; None selects the default.

    ``launch_options`` are all words before the script, torchrun's included.
    """

    preset: str | None = None
    on_hang: str = OnHang.RESTART
    act_after: str | None = None
    allow_fresh_start: bool = False
    inject: tuple[str, ...] = ()
    json_report: Path | None = None
    run_dir: str | None = None
    recorder: str | None = None
    group_timeout: str | None = None
    max_failures: str | None = None
    window: str = "1h"
    max_idle: str = "3"
    backoff: str = "1s"
    exclude_stragglers: bool = False
    no_gate: bool = False
    alert: tuple[str, ...] = ()
    history: str | None = None
    serve: str | None = None
    skip_batches: bool = False
    launch_options: tuple[str, ...] = ()
    prefix: str = Prefix.AUTO


def run_job(
    options: argparse.Namespace, request: RunRequest, observer: RunObserver | None = None
) -> int:
    """Run the job and return its exit status, which is torchrun's.

    ``observer`` is notified of each line of the ledger.

    Raises:
        UsageError: an invalid option; nothing was started.
        WorldError: the rendezvous failed.
    """
    command_line.check_options(options)
    plan, recovery_options = _plan(options, request), _recovery_options(options, request)
    base = _run_dir(request.run_dir)
    folder = RunFolder(base, workers=plan.workers, records=settings.read_count("HOLDFAST_RING"))
    atexit.register(folder.close)
    _report_variables(plan, folder)
    if folder.trouble and plan.recorder != "off":
        print_message(
            f"trace files are written to {folder.traces}, which is slower: {folder.trouble}"
        )
    history, requeued = _history(request, base)
    alerts = Alerts(read_alert_request(request.alert, folder.name, history), print_message)
    watcher = WatcherChannel(plan.environment, folder.path / "watcher.log")
    gate = None
    if not request.no_gate:
        gate = HostGate(CheckContext(environ=dict(plan.environment), workers=plan.workers))
        gate.begin()
    recovery = Recovery(folder, recovery_options, print_message, gate, history, observer)
    command = shlex.join([options.training_script, *options.training_script_args])
    recovery.begin(command, same=requeued)
    node = NodeAgent(folder, plan, recovery, watcher, alerts)
    status = FAILED
    try:
        status = launch(options, node, logs=folder.logs, quiet="LOGLEVEL" not in plan.environment)
    except HoldfastError as error:
        status = error.exit_status
        raise
    finally:
        status = recovery.status(status)
        node.close(status)
        if observer is not None:
            observer.close()
    return status


def _report_variables(plan: LaunchPlan, folder: RunFolder) -> None:
    """Print what the preset sets, and what is wrong with the user's variables; store the latter."""
    unread = unread_loader_settings(plan.preset, plan.script)
    findings = audit_environment().findings
    folder.write("env.json", json_report.encode_json(json_report.envelope("env", findings, None)))
    problems = (each for each in findings if each.level is not Level.NOTE)
    for message in (
        *plan.preset.messages(),
        *filter(None, (unread,)),
        *(finding.message for finding in problems),
    ):
        print_message(message)


def _run_dir(flag: str | None) -> Path:
    """Return the parent of the run folder; a temporary one if the current folder is read-only."""
    reading = settings.read_setting("HOLDFAST_RUN_DIR", flag=flag)
    base = Path(str(reading.value)).expanduser()
    if reading.origin != "default" or os.access(base if base.exists() else Path(), os.W_OK):
        return base
    elsewhere = Path(tempfile.gettempdir()) / f"{base.name}-{os.getuid()}"
    print_message(f"{Path().absolute()} is not writable: the run folder is in {elsewhere}")
    return elsewhere


def _history(request: RunRequest, base: Path) -> tuple[Path | None, bool]:
    """Return the history folder, and whether it is implied: a Slurm job has one by default."""
    if request.history is not None:
        return past_runs.create_history(Path(request.history).expanduser()), False
    history = past_runs.slurm_history(settings.current_environment(), base)
    return (None, False) if history is None else (past_runs.create_history(history), True)


def _plan(options: argparse.Namespace, request: RunRequest) -> LaunchPlan:
    workers = command_line.local_world_size(options)
    own = settings.current_environment()
    preset = apply_preset(request.preset, options, workers)
    environment = {**own, **settings.filled_gaps(preset.readings)}
    recorder = str(settings.read_setting("HOLDFAST_RECORDER", flag=request.recorder).value)
    if options.no_python:
        recorder = "off"
    inject = ";".join(request.inject) or settings.read_text("HOLDFAST_INJECT") or ""
    _check_request(request, environment)
    _check_faults(inject, recorder, workers * command_line.max_nodes(options))
    if request.allow_fresh_start:
        environment = {**environment, "HOLDFAST_ALLOW_FRESH_START": "on"}
    gaps = {name: value for name, value in environment.items() if own.get(name) != value}
    if request.act_after is not None:  # only the watcher reads it
        act_after_s = _parse_time("--act-after", request.act_after)
        environment = {**environment, "HOLDFAST_ACT_AFTER": f"{act_after_s:g}"}
    serve = request.serve or settings.read_text("HOLDFAST_SERVE", environ=environment)
    if serve is not None:
        parse_address(serve)
        environment = {**environment, "HOLDFAST_SERVE": serve}
    library = prepare_extensions(recorder, print_message, faults=bool(inject))
    script = options.training_script
    if not (options.no_python or options.module):
        script = Path(script).resolve()
    return LaunchPlan(
        workers=workers,
        recorder=recorder,
        native=str(library or ""),
        inject=inject,
        preset=preset,
        environment=environment,
        json_report=request.json_report,
        script=str(script),
        command=(options.training_script, *options.training_script_args),
        launch_options=request.launch_options,
        group_timeout_s=_group_timeout(request.group_timeout),
        gaps=gaps,
    )


def _check_faults(inject: str, recorder: str, world_size: int) -> None:
    """Report faults that cannot be injected: without a recorder, or into no rank of this job."""
    faults_wanted = faults.parse_fault(inject)
    if faults_wanted and recorder == "off":
        why = "the recorder injects faults, and it is off"
        raise InvalidValue("--inject", why=why, next_step="remove --recorder off and --no-python")
    for rank in (rank for fault in faults_wanted for rank in fault.ranks or ()):
        if rank >= world_size:
            raise InvalidValue(
                "--inject",
                why=f"there is no rank {rank} in a job of {world_size}",
                next_step=f"use a rank from 0 to {world_size - 1}",
            )


def _check_json_report(path: Path) -> None:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise MissingFile(path, why="its folder does not exist")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise MissingFile(path, why="it cannot be written", next_step="choose another path")


def _check_request(request: RunRequest, environment: Mapping[str, str]) -> None:
    """Report invalid options and variables before anything starts."""
    for name in settings.SETTINGS:
        if name.startswith("HOLDFAST_"):
            settings.read_setting(name, environ=environment)
    if request.on_hang not in set(OnHang):
        raise UnknownName("value of --on-hang", request.on_hang, OnHang)
    if request.prefix not in set(Prefix):
        raise UnknownName("value of --prefix", request.prefix, Prefix)
    if request.json_report is not None:
        _check_json_report(request.json_report)


def _recovery_options(options: argparse.Namespace, request: RunRequest) -> RecoveryOptions:
    """Build the policy's options; with --max-failures alone, restarts are unlimited."""
    failures = None
    if request.max_failures is not None:
        failures = _parse_count("--max-failures", request.max_failures)
        options.max_restarts = options.max_restarts or UNLIMITED_RESTARTS
    return RecoveryOptions(
        on_hang=OnHang(request.on_hang),
        max_restarts=int(options.max_restarts),
        max_failures=failures,
        window_s=_parse_time("--window", request.window),
        max_idle=_parse_count("--max-idle", request.max_idle),
        backoff_s=_parse_time("--backoff", request.backoff),
        exclude_stragglers=request.exclude_stragglers,
        skip_batches=request.skip_batches,
        min_nodes=command_line.min_nodes(options),
    )


def _parse_time(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except InvalidValue as error:
        raise InvalidValue(option, why=error.why, next_step=error.next_step) from error


def _parse_count(option: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise InvalidValue(
            option, why=f"{text!r} is not a whole number", next_step="use a number such as 3"
        )
    return int(text)


def _group_timeout(flag: str | None) -> float | None:
    """Return the process-group timeout in seconds for scripts that set none; None keeps torch's."""
    if flag is not None:
        return _parse_time("--group-timeout", flag)
    value = settings.read_setting("HOLDFAST_GROUP_TIMEOUT_S").value
    return float(value) if isinstance(value, int | float) else None
