"""Every environment variable that holdfast reads or sets, and the presets: one typed table.

Variables of other software are in :mod:`holdfast.core.variable_table`. Only this module accesses
``os.environ``. Precedence: flag, environment, preset, default; :func:`read_setting` reports the
origin. A preset fills gaps and never overrides what the user set, under any alias.
``docs/settings.md`` is generated from :data:`SETTINGS` and :data:`PRESETS`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import InternalError, InvalidValue, UnknownName

START = "the start of `holdfast run`"
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
WORKER_START = "the start of the worker"
IMPORT = "the import of torch"
GROUP = "init_process_group"


class SettingKind(StrEnum):
    """How the text of a variable is parsed."""

    SECONDS = "seconds"
    COUNT = "count"
    PATH = "path"
    TEXT = "text"
    CHOICE = "choice"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One variable: effect, owner, versions, and the moment before which it must be set.

    ``set_by`` is ``you``, or the part of holdfast or torch that sets it for child processes.
    ``aliases`` are other names of the same setting; a preset does not set the variable if one of
    them is set.
    """

    name: str
    kind: SettingKind
    effect: str
    default: str | int | float | None = None
    unit: str = ""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    owner: str = "holdfast"
    since: str = "0.1.0"
    until: str | None = None
    too_late: str = START
    set_by: str = "you"
    aliases: tuple[str, ...] = ()


class SettingReading(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a variable (None: not set), its origin, and the reason if a preset set it."""

    name: str
    value: str | int | float | Path | None
    origin: str
    why: str = ""


class SettingDefault(msgspec.Struct, frozen=True):
    """A preset's value and the reason for it.

    ``{threads}`` is computed from the number of cores.
    """

    value: str
    why: str


# Each row is a template with changed fields.
_HOLDFAST = Setting(name="", kind=SettingKind.TEXT, effect="")
_TIMEOUT = replace(_HOLDFAST, kind=SettingKind.SECONDS, unit="s", minimum=0.1)
_SET_BY_RUN = replace(_HOLDFAST, set_by="holdfast run", too_late=WORKER_START)
_ELASTIC = replace(
    _SET_BY_RUN,
    kind=SettingKind.COUNT,
    minimum=0,
    owner="torchelastic",
    since="torch 1.9",
    set_by="elastic agent",
)
_TORCH = replace(_HOLDFAST, owner="torch", since="torch 2.2", too_late=GROUP)
_DUMPS = replace(_TORCH, since="torch 2.2 or 2.3", set_by="you, or holdfast run")
_SWITCH = replace(_TORCH, kind=SettingKind.CHOICE, choices=("0", "1"))
_SYSTEM = replace(_HOLDFAST, owner="your system", since="-")


def _make_row(template: Setting, name: str, effect: str, **different: Any) -> Setting:
    return replace(template, name=name, effect=effect, **different)


_ROWS = (
    _make_row(
        _TIMEOUT,
        "HOLDFAST_STALL_S",
        "Minimum time without progress before a job is inspected; ten times the p99 of recent "
        "steps if that is longer.",
        default=5.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_FIRST_STEP_S",
        "Timeout for a worker's first step.",
        default=60.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_COMPILE_S",
        "Timeout while torch.compile or a kernel compiler runs.",
        default=600.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_CHECKPOINT_S",
        "Timeout while a checkpoint is written or read.",
        default=600.0,
    ),
    _make_row(
        _TIMEOUT, "HOLDFAST_EVALUATION_S", "Timeout while an evaluation runs.", default=1800.0
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_ALONE_S",
        "Timeout for a rank without progress that no other rank waits for in a collective.",
        default=1800.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_ACT_AFTER",
        "Minimum silence before holdfast acts on a suspected hang that may still recover, as "
        "--act-after; also 90s or 2m. It acts at once on what cannot recover: a stopped rank, "
        "mismatched collectives, a deadlock.",
        default=60.0,
        minimum=0.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_GROUP_TIMEOUT_S",
        "Default process-group timeout when the script sets none, as --group-timeout; if unset, "
        "torch's own (10 minutes for NCCL, 30 for gloo).",
        too_late=GROUP,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_HEALTH_S",
        "Interval of the watcher's checks of GPUs, links, memory and disk of its host; 0 disables.",
        default=30.0,
        minimum=0.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_STRAGGLER_S",
        "Window over which a rank must be slower than all others to be reported; 0 disables.",
        default=60.0,
        minimum=0.0,
    ),
    _make_row(
        _TIMEOUT,
        "HOLDFAST_GRACE_S",
        "Time from a scheduler's warning (SIGTERM, SIGUSR1) to termination, for a last checkpoint.",
        default=30.0,
        too_late=WORKER_START,
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_TIMEOUTS",
        "TOML file with your own timeouts for holdfast.comm collectives; overrides the defaults "
        "key by key. The same on all hosts.",
        kind=SettingKind.PATH,
        too_late="the first collective",
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_HISTORY",
        "Folder of the history of timeouts and slow collectives across restarts. `holdfast run` "
        "sets it to `history` in the folder of all runs; if unset, no history is kept.",
        kind=SettingKind.PATH,
        set_by="you, or holdfast run",
        too_late=WORKER_START,
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_RING",
        "Collectives in each rank's trace file, 128 bytes each; the oldest is overwritten.",
        kind=SettingKind.COUNT,
        default=4096,
        unit="records",
        minimum=64,
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_CACHE",
        "Folder for compiled extensions; if unset, one in the user's cache folder.",
        kind=SettingKind.PATH,
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_RUN_DIR",
        "Folder in which every run creates its own folder, as --run-dir.",
        kind=SettingKind.PATH,
        default="holdfast-runs",
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_ALERTS",
        "Apprise URLs for failure notifications, as --alert, or @FILE, separated by spaces. Never "
        "shown or recorded.",
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_TOKEN",
        "A shared secret for the `holdfast attach` or `holdfast check` processes of one job, one "
        "per node: only processes with the same token connect.",
        too_late="the start of `holdfast attach`",
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_LINT",
        "Whether the source of a failed job is linted and compared with the verdict.",
        kind=SettingKind.CHOICE,
        default="on",
        choices=("on", "off"),
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_TRACE",
        "Trace file of this rank; if unset, nothing is recorded.",
        kind=SettingKind.PATH,
        aliases=("HOLDFAST_BOX",),
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_RECORDER",
        "Recorder used by workers; auto is native if it was compiled earlier, else python; native "
        "waits for the compiler.",
        kind=SettingKind.CHOICE,
        default="auto",
        choices=("auto", "native", "python", "off"),
        set_by="you, or holdfast run",
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_NATIVE",
        "The compiled recorder; empty if there is none.",
        kind=SettingKind.PATH,
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_INJECT",
        "Faults to inject, in the syntax of --inject; `holdfast chaos` lists them.",
        set_by="you, or holdfast run",
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_FACTS",
        "Facts about this host (JSON) that each rank copies into its trace file.",
        kind=SettingKind.PATH,
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_ADJUSTMENTS",
        "Adjustments of this start of the job (JSON), decided by the recovery policy.",
        kind=SettingKind.PATH,
    ),
    _make_row(
        _HOLDFAST,
        "HOLDFAST_SPARES",
        "Standby processes for a restart, as --spares.",
        kind=SettingKind.CHOICE,
        default="warm",
        choices=("off", "warm", "cuda"),
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_SPARE",
        "File descriptor from which a standby process reads its role.",
        kind=SettingKind.COUNT,
        minimum=0,
    ),
    _make_row(
        _SET_BY_RUN,
        "HOLDFAST_WATCHER_PID",
        "Process that may read this worker's stacks.",
        kind=SettingKind.COUNT,
        minimum=1,
    ),
    _make_row(_ELASTIC, "RANK", "Global rank of this worker."),
    _make_row(_ELASTIC, "LOCAL_RANK", "Rank of this worker on its node."),
    _make_row(_ELASTIC, "WORLD_SIZE", "Number of workers of the job."),
    _make_row(_ELASTIC, "GROUP_RANK", "Number of this worker's node."),
    _make_row(_ELASTIC, "GROUP_WORLD_SIZE", "Number of nodes of the job."),
    _make_row(_ELASTIC, "MASTER_ADDR", "Host of the rendezvous.", kind=SettingKind.TEXT),
    _make_row(
        _ELASTIC,
        "TORCHELASTIC_RESTART_COUNT",
        "Restarts so far: the generation of this worker.",
    ),
    _make_row(
        _TORCH,
        "OMP_NUM_THREADS",
        "CPU threads per process; torchrun sets 1 if it is unset and a node has several workers.",
        kind=SettingKind.COUNT,
        minimum=1,
        since="-",
        too_late=IMPORT,
    ),
    _make_row(
        _TORCH,
        "TORCH_FR_BUFFER_SIZE",
        "Number of calls in torch's flight recorder; 0 disables it, and was the default before "
        "torch 2.11.",
        kind=SettingKind.COUNT,
        minimum=0,
        since="torch 2.8 or 2.9",
        aliases=("TORCH_NCCL_TRACE_BUFFER_SIZE",),
    ),
    _make_row(
        _TORCH,
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "Old name of TORCH_FR_BUFFER_SIZE, and the only one that the NCCL group checks before it "
        "dumps; newer torch warns about it.",
        kind=SettingKind.COUNT,
        minimum=0,
        aliases=("TORCH_FR_BUFFER_SIZE",),
    ),
    _make_row(
        _SWITCH,
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "Write the flight recorder to a file when a NCCL call times out.",
    ),
    _make_row(
        _DUMPS,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
        "Name prefix of the pipe on which an NCCL group accepts dump requests; torch appends the "
        "rank and .pipe.",
    ),
    _make_row(
        _DUMPS,
        "TORCH_FR_DUMP_TEMP_FILE",
        "Name prefix of the flight-recorder dumps; torch appends the rank.",
        since="torch 2.8 to 2.10",
        set_by="you",
        aliases=("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",),
    ),
    _make_row(
        _DUMPS,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
        "Old name of TORCH_FR_DUMP_TEMP_FILE, still read if that is unset.",
        aliases=("TORCH_FR_DUMP_TEMP_FILE",),
    ),
    _make_row(
        _TORCH,
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
        "Time to write that file before the process is torn down.",
        kind=SettingKind.COUNT,
        unit="ms",
        minimum=0,
        since="torch 2.3 to 2.5",
    ),
    _make_row(
        _TORCH,
        "TORCH_DISTRIBUTED_DEBUG",
        "Debug level of torch.distributed; DETAIL checks every collective and makes it several "
        "times slower.",
        kind=SettingKind.CHOICE,
        choices=("OFF", "INFO", "DETAIL"),
        since="torch 2.1 or before",
        too_late=IMPORT,
    ),
    _make_row(
        _SWITCH,
        "TORCH_SHOW_CPP_STACKTRACES",
        "Append the C++ stack to errors raised in C++.",
        since="-",
    ),
    _make_row(
        _TORCH,
        "PYTORCH_CUDA_ALLOC_CONF",
        "Settings of the CUDA allocator; in torch 2.13 it still overrides the newer name "
        "PYTORCH_ALLOC_CONF.",
        since="torch 2.1 or before",
        too_late="the first use of CUDA",
        aliases=("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    ),
    _make_row(
        _TORCH,
        "NCCL_DEBUG",
        "Log level of NCCL.",
        kind=SettingKind.CHOICE,
        owner="nccl",
        since="nccl 1.2 or before",
        choices=("VERSION", "WARN", "INFO", "ABORT", "TRACE"),
    ),
    _make_row(_SYSTEM, "CXX", "C++ compiler for the native recorder; g++ if unset."),
    _make_row(
        _SYSTEM,
        "XDG_CACHE_HOME",
        "The user's cache folder; ~/.cache if unset.",
        kind=SettingKind.PATH,
    ),
)

#: Every variable that holdfast reads or sets, by name.
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}

# Not in the presets, on purpose: workarounds that cost bandwidth (NCCL_P2P_DISABLE, NCCL_ALGO),
# variables that nothing reads (NCCL_TIMEOUT), CUDA_LAUNCH_BLOCKING, which serialises the GPU, and
# TORCH_NCCL_DESYNC_DEBUG, which has crashed jobs in the field.
_BASIC = {
    "OMP_NUM_THREADS": SettingDefault(
        "{threads}", "torchrun's default of 1 leaves cores idle that the workers could share."
    ),
    "TORCH_FR_BUFFER_SIZE": SettingDefault(
        "2000", "Only the flight recorder records what NCCL completed; it was off before 2.11."
    ),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": SettingDefault(
        "1", "A NCCL call that times out then writes its history to a file."
    ),
}

#: Preset -> variable -> value and reason. Each adds to ``basic`` or replaces a value of it.
PRESETS: Mapping[str, Mapping[str, SettingDefault]] = {
    "basic": _BASIC,
    "gpu-cache": {
        **_BASIC,
        "PYTORCH_CUDA_ALLOC_CONF": SettingDefault(
            "expandable_segments:True",
            "A dataset in GPU memory leaves little free memory; growing segments waste less of it.",
        ),
        "HOLDFAST_FIRST_STEP_S": SettingDefault(
            "300", "The first step waits until the dataset has been copied to the GPU."
        ),
    },
    "prefetch": {
        **_BASIC,
        "OMP_NUM_THREADS": SettingDefault(
            "{threads/2}", "Half of the cores are reserved for data-loader processes."
        ),
        "HOLDFAST_FIRST_STEP_S": SettingDefault(
            "180", "The first step waits until the data-loader processes have started."
        ),
    },
    "conservative": {
        **_BASIC,
        "TORCH_FR_BUFFER_SIZE": SettingDefault(
            "20000", "A long history shows where ranks diverged, not only where they are now."
        ),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": SettingDefault(
            "20000", "Before torch 2.11 the NCCL group dumps only if this is set."
        ),
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": SettingDefault(
            "60000", "Writing every rank's dump to slow storage takes long."
        ),
        "TORCH_DISTRIBUTED_DEBUG": SettingDefault(
            "INFO", "torch reports how its process groups and DDP are set up."
        ),
        "TORCH_SHOW_CPP_STACKTRACES": SettingDefault(
            "1", "Errors raised in C++ include their origin."
        ),
        "NCCL_DEBUG": SettingDefault(
            "WARN", "NCCL reports the failed link or call before torch raises an error."
        ),
        "HOLDFAST_STALL_S": SettingDefault(
            "30", "A job that pauses often should not be inspected at every pause."
        ),
        "HOLDFAST_FIRST_STEP_S": SettingDefault(
            "300", "Large models and cold file systems take minutes to start."
        ),
        "HOLDFAST_COMPILE_S": SettingDefault("1800", "Large models take long to compile."),
        "HOLDFAST_CHECKPOINT_S": SettingDefault("1800", "Large checkpoints go to slow storage."),
        "HOLDFAST_EVALUATION_S": SettingDefault("3600", "Long evaluations are not interrupted."),
    },
}


def current_environment() -> dict[str, str]:
    """Return a copy of this process's environment, for child processes."""
    return dict(os.environ)


def apply_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment of this process by ``variables``, for C code too."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def read_setting(
    name: str,
    *,
    flag: str | float | None = None,
    preset: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> SettingReading:
    """Return the value of ``name`` and its origin.

    An empty variable counts as unset.

    Raises:
        InvalidValue: the text is not of the variable's kind; the message names its origin.
        UnknownName: there is no such preset.
    """
    row = _find_row(name)
    variables = os.environ if environ is None else environ
    default = _find_preset(preset).get(name) if preset else None
    if flag is not None:
        return SettingReading(name=name, value=_parse(row, str(flag), "flag"), origin="flag")
    if variables.get(name):
        return SettingReading(
            name=name, value=_parse(row, variables[name], "environment"), origin="environment"
        )
    if default is not None:
        text = _resolve_threads(default.value, 1, None)
        return SettingReading(
            name=name,
            value=_parse(row, text, "preset"),
            origin=f"preset {preset}",
            why=default.why,
        )
    value = None if row.default is None else _parse(row, str(row.default), "default")
    return SettingReading(name=name, value=value, origin="default")


def read_seconds(name: str, environ: Mapping[str, str] | None = None) -> float:
    """Return the value of a duration variable in seconds. Raises InvalidValue."""
    return float(_read_number(name, environ))


def read_count(name: str, environ: Mapping[str, str] | None = None) -> int:
    """Return the value of an integer variable that is set or has a default. Raises InvalidValue."""
    return int(_read_number(name, environ))


def read_text(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Return a variable's value as text; None if unset without a default. Raises InvalidValue."""
    value = read_setting(name, environ=environ).value
    return None if value is None else str(value)


def read_path(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return a path variable, ``~`` expanded; None if it is unset without a default."""
    value = read_text(name, environ)
    return Path(value).expanduser() if value else None


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache folder: $HOLDFAST_CACHE, $XDG_CACHE_HOME/holdfast or ~/.cache/holdfast."""
    own = read_path("HOLDFAST_CACHE", environ)
    return own or (read_path("XDG_CACHE_HOME", environ) or Path.home() / ".cache") / "holdfast"


def compiler_command(environ: Mapping[str, str] | None = None) -> str | None:
    """Return the C++ compiler in $CXX, or None."""
    return read_text("CXX", environ)


def preset_readings(
    preset: str, *, workers: int, cores: int | None = None, environ: Mapping[str, str] | None = None
) -> tuple[SettingReading, ...]:
    """Return the effective value and origin of each variable of ``preset``.

    ``workers`` is the number of workers on this node, ``cores`` the number of cores they share
    (default: this process's). A variable that the user set, under any alias, is kept.

    Raises:
        UnknownName: there is no such preset.
    """
    variables = os.environ if environ is None else environ
    readings = []
    for name, default in _find_preset(preset).items():
        own = next((alias for alias in all_names(name) if variables.get(alias)), None)
        if own is None:
            value = _resolve_threads(default.value, workers, cores)
            readings.append(
                SettingReading(name=name, value=value, origin=f"preset {preset}", why=default.why)
            )
        elif own == name:
            readings.append(SettingReading(name=name, value=variables[name], origin="environment"))
        else:
            readings.append(
                SettingReading(
                    name=name, value=None, origin=f"environment, as {own}={variables[own]}"
                )
            )
    return tuple(readings)


def worker_environment(
    preset: str, *, workers: int, cores: int | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the workers' environment: the user's, with gaps filled from the preset.

    Raises:
        UnknownName: there is no such preset.
    """
    variables = dict(os.environ if environ is None else environ)
    readings = preset_readings(preset, workers=workers, cores=cores, environ=variables)
    gaps = {
        reading.name: str(reading.value)
        for reading in readings
        if reading.origin.startswith("preset")
    }
    return {**variables, **gaps}


def missing_defaults(
    defaults: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return those of ``defaults`` that the user has set under no alias."""
    variables = os.environ if environ is None else environ
    return {
        name: value
        for name, value in defaults.items()
        if not any(variables.get(alias) for alias in all_names(name))
    }


def all_names(name: str) -> tuple[str, ...]:
    """Return a variable's name and its aliases."""
    return name, *_find_row(name).aliases


def _find_row(name: str) -> Setting:
    if name not in SETTINGS:
        raise InternalError(f"the variable {name} is not in the table of settings")
    return SETTINGS[name]


def _find_preset(name: str) -> Mapping[str, SettingDefault]:
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]


def _resolve_threads(value: str, workers: int, cores: int | None) -> str:
    threads = (cores or len(os.sched_getaffinity(0))) // max(workers, 1)
    return {"{threads}": str(max(threads, 1)), "{threads/2}": str(max(threads // 2, 1))}.get(
        value, value
    )


def _read_number(name: str, environ: Mapping[str, str] | None) -> float:
    value = read_setting(name, environ=environ).value
    if not isinstance(value, int | float):
        raise InvalidValue(
            name,
            why="it is unset and has no default",
            next_step=f"set it: {_find_row(name).effect}",
        )
    return value


def _parse(row: Setting, text: str, origin: str) -> str | int | float | Path:
    """Parse ``text`` as the kind of value of the row."""
    if row.kind == SettingKind.PATH:
        return Path(text)
    if row.kind == SettingKind.TEXT:
        return text
    expected = (
        f"one of {', '.join(row.choices)}"
        if row.choices
        else f"a number ({row.unit})"
        if row.unit
        else "a number"
    )
    if row.kind == SettingKind.CHOICE:
        match = next(
            (choice for choice in row.choices if choice.casefold() == text.casefold()), None
        )
        if match is not None:
            return match
    else:
        value = _to_number(row.kind, text)
        if value is not None and (row.minimum is None or value >= row.minimum):
            return value
        expected += "" if row.minimum is None else f" of at least {row.minimum:g}"
    raise InvalidValue(
        row.name, why=f"{text!r}, from the {origin}, is not {expected}", next_step=row.effect
    )


def parse_time(text: str) -> float | None:
    """Parse a duration in ms, s, m, h or without unit; return seconds, None for other text."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*(ms|s|m|h|)\s*", text)
    return None if match is None else float(match[1]) * _UNITS[match[2]]


def _to_number(kind: SettingKind, text: str) -> int | float | None:
    try:
        value = int(text) if kind == SettingKind.COUNT else float(text)
    except ValueError:
        return parse_time(text) if kind == SettingKind.SECONDS else None
    return value if math.isfinite(value) else None
