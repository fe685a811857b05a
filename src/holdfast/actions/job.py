"""One run of ``holdfast run`` on this node: from what the user asked for to the exit status."""

from __future__ import annotations

import argparse
import atexit
import shlex
from pathlib import Path

import msgspec

from holdfast import settings
from holdfast.actions import past_runs
from holdfast.actions.agent import NodeAgent
from holdfast.actions.alerts import Alerts
from holdfast.actions.audit import audit_environment
from holdfast.actions.channel import Channel
from holdfast.actions.gate import Gate
from holdfast.actions.policy import OnHang, Terms
from holdfast.actions.recovery import Recovery
from holdfast.actions.run_folder import RunFolder
from holdfast.actions.words import Plan, say
from holdfast.errors import BadValue, HoldfastError, MissingFile, UnknownName
from holdfast.facts.checks import Place
from holdfast.findings import Level
from holdfast.runtime import faults, packing, torchrun
from holdfast.runtime.launch import FAILED, launch
from holdfast.runtime.recorder import build
from holdfast.runtime.recorder import seconds as recorder_seconds

#: --max-restarts where --max-failures alone bounds them.
WITHOUT_END = 10_000


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for besides torchrun's arguments; None where a default applies."""

    preset: str | None = None
    on_hang: str = OnHang.RESTART
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
    gate: bool = True
    alert: tuple[str, ...] = ()
    history: str | None = None
    skip_batches: bool = False


def run(given: argparse.Namespace, wish: Wish) -> int:
    """Run the job and return its exit status, which is torchrun's.

    Raises:
        UsageError: anything the user asked for that cannot be; nothing was started then.
        WorldError: the rendezvous did not come about.
    """
    torchrun.check(given)
    plan, terms = _plan(given, wish), _terms(given, wish)
    base = Path(str(settings.read("HOLDFAST_RUN_DIR", flag=wish.run_dir).value)).expanduser()
    folder = RunFolder(base, workers=plan.workers, records=settings.count("HOLDFAST_RING"))
    atexit.register(folder.close)
    for claim in audit_environment().findings:
        if claim.level is not Level.NOTE:
            say(claim.message)
    if folder.trouble and plan.recorder != "off":
        say(f"the boxes lie in {folder.boxes}, where writing is slower: {folder.trouble}")
    alerts = Alerts(wish.alert or (settings.text("HOLDFAST_ALERTS") or "").split(), folder.name, say)
    watcher = Channel(plan.environment, folder.path / "watcher.log")
    gate = Gate(Place(environ=dict(plan.environment), workers=plan.workers)) if wish.gate else None
    history, requeued = _history(wish, base)
    recovery = Recovery(folder, terms, say, gate, history)
    command = shlex.join([given.training_script, *given.training_script_args])
    recovery.begin(command, same=requeued)
    node = NodeAgent(folder, plan, recovery, watcher, alerts)
    status = FAILED
    try:
        status = launch(given, node, logs=folder.logs, quiet="LOGLEVEL" not in plan.environment)
    except HoldfastError as error:
        status = error.exit_status
        raise
    finally:
        status = recovery.status(status)
        node.close(status)
    return status


def _history(wish: Wish, base: Path) -> tuple[Path | None, bool]:
    """The folder that keeps the ledger over runs, and whether nobody has named it: a job of Slurm has one by itself."""
    if wish.history is not None:
        return past_runs.folder(Path(wish.history).expanduser()), False
    of_slurm = past_runs.of_slurm(settings.environment(), base)
    return (None, False) if of_slurm is None else (past_runs.folder(of_slurm), True)


def _plan(given: argparse.Namespace, wish: Wish) -> Plan:
    workers = torchrun.local_world_size(given)
    own = settings.environment()
    environment = settings.worker_environment(wish.preset, workers=workers) if wish.preset else own
    for name in settings.SETTINGS:
        if name.startswith("HOLDFAST_"):
            settings.read(name, environ=environment)  # a value that cannot be read is said now, not by the watcher
    recorder = "off" if given.no_python else str(settings.read("HOLDFAST_RECORDER", flag=wish.recorder).value)
    inject = ";".join(wish.inject) or settings.text("HOLDFAST_INJECT") or ""
    if faults.parse(inject) and recorder == "off":
        why = "faults are injected by the recorder, which is off"
        raise BadValue("--inject", why=why, next_step="leave out --recorder off and --no-python")
    if wish.on_hang not in set(OnHang):
        raise UnknownName("answer to --on-hang", wish.on_hang, OnHang)
    if wish.json_report is not None and not wish.json_report.absolute().parent.is_dir():
        raise MissingFile(wish.json_report, why="its folder does not exist")
    library = build.ensure_built(say) if recorder in ("auto", "native") else None
    if library is not None:
        packing.ensure_built(say)
    return Plan(
        workers=workers, recorder=recorder, native=str(library or ""), inject=inject,
        preset=wish.preset, environment=environment, json_report=wish.json_report,
        script=str(given.training_script if given.no_python or given.module else Path(given.training_script).resolve()),
        group_timeout_s=_group_timeout(wish.group_timeout),
        gaps={name: value for name, value in environment.items() if own.get(name) != value},
    )  # fmt: skip


def _terms(given: argparse.Namespace, wish: Wish) -> Terms:
    """What the user allows; with --max-failures alone, any number of restarts in all."""
    failures = _count("--max-failures", wish.max_failures) if wish.max_failures is not None else None
    restarts = int(given.max_restarts)
    if failures is not None and not restarts:
        given.max_restarts = restarts = WITHOUT_END
    return Terms(
        on_hang=OnHang(wish.on_hang), restarts=restarts, failures=failures, window_s=_time("--window", wish.window),
        without_progress=_count("--max-idle", wish.max_idle), backoff_s=_time("--backoff", wish.backoff),
        exclude_stragglers=wish.exclude_stragglers, skip_batches=wish.skip_batches,
        least_nodes=torchrun.least_nodes(given),
    )  # fmt: skip


def _time(option: str, text: str) -> float:
    try:
        return recorder_seconds(text)
    except BadValue as error:
        raise BadValue(option, why=error.why, next_step=error.next_step) from error


def _count(option: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise BadValue(option, why=f"{text!r} is no whole number", next_step="give a number such as 3")
    return int(text)


def _group_timeout(flag: str | None) -> float | None:
    """The limit in seconds for process groups for which the script names none; None leaves torch's own."""
    if flag is not None:
        return recorder_seconds(flag)
    value = settings.read("HOLDFAST_GROUP_TIMEOUT_S").value
    return float(value) if isinstance(value, int | float) else None
