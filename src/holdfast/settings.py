"""Every variable that holdfast reads or sets, and the presets: one typed table (others': :mod:`holdfast.variables`).

This is the only module that touches ``os.environ``. A value comes from, in this order: a flag, the environment, the
preset, the default; :func:`read` says which it was. A preset fills gaps and never replaces what the user set, under
whatever name. ``docs/settings.md`` is generated from :data:`SETTINGS` and :data:`PRESETS`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadValue, InternalError, UnknownName

START = "the start of `holdfast run`"
WORKER_START = "the start of the worker"
IMPORT = "the import of torch"
GROUP = "init_process_group"


class Kind(StrEnum):
    """How the text of a variable is read."""

    SECONDS = "seconds"
    COUNT = "count"
    PATH = "path"
    TEXT = "text"
    CHOICE = "choice"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One variable: what it does, who reads it, since and until when, and after what moment setting it is too late.

    ``set_by`` is ``you``, or names the part of holdfast or torch that sets it for its child processes. ``aliases`` are
    names under which the same thing may already be set; a preset leaves the variable alone then.
    """

    name: str
    kind: Kind
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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a variable, where it comes from, and, where a preset set it, the reason. None: it is not set."""

    name: str
    value: str | int | float | Path | None
    origin: str
    why: str = ""


class Default(msgspec.Struct, frozen=True):
    """One value that a preset gives, and the reason in one sentence. ``{threads}`` is worked out from the cores."""

    value: str
    why: str


# A row is a template with what differs.
_OURS = Setting(name="", kind=Kind.TEXT, effect="")
_PATIENCE = replace(_OURS, kind=Kind.SECONDS, unit="s", minimum=0.1)
_GIVEN = replace(_OURS, set_by="holdfast run", too_late=WORKER_START)
_ELASTIC = replace(_GIVEN, kind=Kind.COUNT, minimum=0, owner="torchelastic", since="torch 1.9", set_by="elastic agent")
_TORCH = replace(_OURS, owner="torch", since="torch 2.2", too_late=GROUP)
_DUMPS = replace(_TORCH, since="torch 2.2 or 2.3", set_by="you, or holdfast run")
_SWITCH = replace(_TORCH, kind=Kind.CHOICE, choices=("0", "1"))
_DESKTOP = replace(_OURS, owner="your system", since="-")


def _row_of(template: Setting, name: str, effect: str, **different: Any) -> Setting:
    return replace(template, name=name, effect=effect, **different)


_ROWS = (
    _row_of(_PATIENCE, "HOLDFAST_STALL_S", "Least silence of a job that is looked into; ten times the p99 of recent "
            "steps counts where that is longer.", default=5.0),
    _row_of(_PATIENCE, "HOLDFAST_FIRST_STEP_S", "Patience until a worker's first step is over.", default=60.0),
    _row_of(_PATIENCE, "HOLDFAST_COMPILE_S", "Patience while torch.compile or a kernel compiler works.", default=600.0),
    _row_of(_PATIENCE, "HOLDFAST_CHECKPOINT_S", "Patience while a checkpoint is written or read.", default=600.0),
    _row_of(_PATIENCE, "HOLDFAST_EVALUATION_S", "Patience while an evaluation runs.", default=1800.0),
    _row_of(_PATIENCE, "HOLDFAST_ALONE_S", "Patience with a rank that stands still while nobody waits for it in a "
            "collective.", default=1800.0),
    _row_of(_PATIENCE, "HOLDFAST_GROUP_TIMEOUT_S", "Time limit of process groups for which the script names none, as "
            "--group-timeout; torch's own (10 minutes for NCCL, 30 for gloo) where it is unset.", too_late=GROUP),
    _row_of(_PATIENCE, "HOLDFAST_HEALTH_S", "Between two looks of the watcher at GPUs, links, memory and disk of its "
            "host; 0 for none.", default=30.0, minimum=0.0),
    _row_of(_PATIENCE, "HOLDFAST_STRAGGLER_S", "Window over which a rank has to be slower than all others to be named; "
            "0 for never.", default=60.0, minimum=0.0),
    _row_of(_PATIENCE, "HOLDFAST_GRACE_S", "Time from a scheduler's warning (SIGTERM, SIGUSR1) to the end, for the "
            "last checkpoint.", default=30.0, too_late=WORKER_START),
    _row_of(_OURS, "HOLDFAST_TIMEOUTS", "TOML file with your own time limits for the collectives of holdfast.comm, "
            "over ours key by key; the same on all hosts.", kind=Kind.PATH, too_late="the first collective"),
    _row_of(_OURS, "HOLDFAST_HISTORY", "Folder in which time-outs and slow collectives are counted over restarts. "
            "`holdfast run` sets it to `history` in the folder of all runs; nothing is kept where it is unset.",
            kind=Kind.PATH, set_by="you, or holdfast run", too_late=WORKER_START),
    _row_of(_OURS, "HOLDFAST_RING", "Collectives that each rank's box remembers, 128 bytes each; the oldest is "
            "overwritten.", kind=Kind.COUNT, default=4096, unit="records", minimum=64),
    _row_of(_OURS, "HOLDFAST_CACHE", "Folder for what is compiled once and kept; where it is unset, one in the "
            "user's caches.", kind=Kind.PATH),
    _row_of(_OURS, "HOLDFAST_RUN_DIR", "Folder in which every run makes a folder of its own, as --run-dir.",
            kind=Kind.PATH, default="holdfast-runs"),
    _row_of(_OURS, "HOLDFAST_ALERTS", "Where failures are told, as --alert: addresses of apprise, or @FILE, with "
            "spaces between them. Never shown or recorded."),
    _row_of(_OURS, "HOLDFAST_TOKEN", "A secret for the copies of `holdfast attach` that a launcher starts, one a node: "
            "they meet only where all have the same.", too_late="the start of `holdfast attach`"),
    _row_of(_OURS, "HOLDFAST_LINT", "Whether the source of a job that went wrong is linted, and the verdict held "
            "against it.", kind=Kind.CHOICE, default="on", choices=("on", "off")),
    _row_of(_GIVEN, "HOLDFAST_BOX", "Box file of this rank; nothing is recorded where it is unset.", kind=Kind.PATH),
    _row_of(_GIVEN, "HOLDFAST_RECORDER", "Which recorder workers use; auto is the native one where it was compiled.",
            kind=Kind.CHOICE, default="auto", choices=("auto", "native", "python", "off"),
            set_by="you, or holdfast run"),
    _row_of(_GIVEN, "HOLDFAST_NATIVE", "The compiled recorder; empty where there is none.", kind=Kind.PATH),
    _row_of(_GIVEN, "HOLDFAST_INJECT", "Faults to inject, in the grammar of --inject; `holdfast chaos` lists them.",
            set_by="you, or holdfast run"),
    _row_of(_GIVEN, "HOLDFAST_FACTS", "Facts of this host (JSON), which each rank keeps in its box.", kind=Kind.PATH),
    _row_of(_GIVEN, "HOLDFAST_ADJUSTMENTS", "What this start of the job does differently (JSON): the policy's "
            "decision.", kind=Kind.PATH),
    _row_of(_OURS, "HOLDFAST_SPARES", "Spare processes for a restart, as --spares.", kind=Kind.CHOICE, default="warm",
            choices=("off", "warm", "cuda")),
    _row_of(_GIVEN, "HOLDFAST_SPARE", "Descriptor at which a spare process hears what it is to become.",
            kind=Kind.COUNT, minimum=0),
    _row_of(_GIVEN, "HOLDFAST_WATCHER_PID", "Process that may take this worker's stacks.", kind=Kind.COUNT, minimum=1),
    _row_of(_ELASTIC, "RANK", "Global rank of this worker."),
    _row_of(_ELASTIC, "LOCAL_RANK", "Rank of this worker on its node."),
    _row_of(_ELASTIC, "WORLD_SIZE", "Number of workers of the job."),
    _row_of(_ELASTIC, "GROUP_RANK", "Number of this worker's node."),
    _row_of(_ELASTIC, "GROUP_WORLD_SIZE", "Number of nodes of the job."),
    _row_of(_ELASTIC, "MASTER_ADDR", "Host at which the ranks meet.", kind=Kind.TEXT),
    _row_of(_ELASTIC, "TORCHELASTIC_RESTART_COUNT", "Restarts so far, which is the generation of this worker."),
    _row_of(_TORCH, "OMP_NUM_THREADS", "CPU threads of each process; torchrun sets 1 where it is unset and a node has "
            "several workers.", kind=Kind.COUNT, minimum=1, since="-", too_late=IMPORT),
    _row_of(_TORCH, "TORCH_FR_BUFFER_SIZE", "Calls that torch's flight recorder keeps; 0 turns it off, and 0 was the "
            "default before torch 2.11.", kind=Kind.COUNT, minimum=0, since="torch 2.8 or 2.9",
            aliases=("TORCH_NCCL_TRACE_BUFFER_SIZE",)),
    _row_of(_TORCH, "TORCH_NCCL_TRACE_BUFFER_SIZE", "Old name of TORCH_FR_BUFFER_SIZE, and the only one that the NCCL "
            "group asks before it dumps; newer torch warns of it.", kind=Kind.COUNT, minimum=0,
            aliases=("TORCH_FR_BUFFER_SIZE",)),
    _row_of(_SWITCH, "TORCH_NCCL_DUMP_ON_TIMEOUT", "Writes the flight recorder to a file when a NCCL call times out."),
    _row_of(_DUMPS, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "Beginning of the name of the pipe at which an NCCL group takes "
            "requests for a dump; torch appends the rank and .pipe."),
    _row_of(_DUMPS, "TORCH_FR_DUMP_TEMP_FILE", "Beginning of the name of the flight recorder's dumps; torch appends "
            "the rank.", since="torch 2.8 to 2.10", set_by="you", aliases=("TORCH_NCCL_DEBUG_INFO_TEMP_FILE",)),
    _row_of(_DUMPS, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "Old name of TORCH_FR_DUMP_TEMP_FILE, still read where that is "
            "unset.", aliases=("TORCH_FR_DUMP_TEMP_FILE",)),
    _row_of(_TORCH, "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "Time for that file before the process is torn down.",
            kind=Kind.COUNT, unit="ms", minimum=0, since="torch 2.3 to 2.5"),
    _row_of(_TORCH, "TORCH_DISTRIBUTED_DEBUG", "Debug level of torch.distributed; DETAIL checks every collective and "
            "makes it several times dearer.", kind=Kind.CHOICE, choices=("OFF", "INFO", "DETAIL"),
            since="torch 2.1 or before", too_late=IMPORT),
    _row_of(_SWITCH, "TORCH_SHOW_CPP_STACKTRACES", "Appends the C++ stack to errors that C++ raises.", since="-"),
    _row_of(_TORCH, "PYTORCH_CUDA_ALLOC_CONF", "Settings of the CUDA allocator; in torch 2.13 it still beats the "
            "newer name PYTORCH_ALLOC_CONF.", since="torch 2.1 or before", too_late="the first use of CUDA",
            aliases=("PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")),
    _row_of(_TORCH, "NCCL_DEBUG", "What NCCL logs.", kind=Kind.CHOICE, owner="nccl", since="nccl 1.2 or before",
            choices=("VERSION", "WARN", "INFO", "ABORT", "TRACE")),
    _row_of(_DESKTOP, "CXX", "C++ compiler for the native recorder; g++ where it is unset."),
    _row_of(_DESKTOP, "XDG_CACHE_HOME", "The user's caches; ~/.cache where it is unset.", kind=Kind.PATH),
)  # fmt: skip

#: Every variable that holdfast reads or sets, by name.
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}

# The presets leave alone, on purpose: what is only said to be safe (NCCL_P2P_DISABLE, NCCL_ALGO: they cost bandwidth),
# what nothing reads (NCCL_TIMEOUT), what serialises the GPU (CUDA_LAUNCH_BLOCKING), and TORCH_NCCL_DESYNC_DEBUG, which
# has crashed jobs in the field.
_BASIC = {
    "OMP_NUM_THREADS": Default("{threads}", "torchrun's 1 leaves cores idle that the workers could share."),
    "TORCH_FR_BUFFER_SIZE": Default(
        "2000", "Only the flight recorder knows what NCCL finished; it was off before 2.11."
    ),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": Default("1", "A NCCL call that times out leaves its history in a file."),
}

#: Preset -> variable -> value and reason. Each adds to ``basic`` or replaces a value of it.
PRESETS: Mapping[str, Mapping[str, Default]] = {
    "basic": _BASIC,
    "gpu-cache": {
        **_BASIC,
        "PYTORCH_CUDA_ALLOC_CONF": Default("expandable_segments:True", "Beside a data set in GPU memory little room is "
                                           "left, and segments that grow waste less of it."),
        "HOLDFAST_FIRST_STEP_S": Default("300", "The first step waits until the data set has been copied to the GPU."),
    },
    "prefetch": {
        **_BASIC,
        "OMP_NUM_THREADS": Default("{threads/2}", "Half of the cores are left to the data loader's processes."),
        "HOLDFAST_FIRST_STEP_S": Default("180", "The first step waits until the loader's processes have begun."),
    },
    "conservative": {
        **_BASIC,
        "TORCH_FR_BUFFER_SIZE": Default("20000", "A long history shows where ranks parted, not only where they stand."),
        "TORCH_NCCL_TRACE_BUFFER_SIZE": Default("20000", "Before torch 2.11 the NCCL group dumps only if this is set."),
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": Default("60000", "Slow storage takes long to hold every rank's dump."),
        "TORCH_DISTRIBUTED_DEBUG": Default("INFO", "torch reports how its process groups and DDP are set up."),
        "TORCH_SHOW_CPP_STACKTRACES": Default("1", "Errors raised in C++ say where they come from."),
        "NCCL_DEBUG": Default("WARN", "NCCL names the link or call that failed before torch sees an error."),
        "HOLDFAST_STALL_S": Default("30", "A job that pauses often is looked into later rather than once too often."),
        "HOLDFAST_FIRST_STEP_S": Default("300", "Large models and cold file systems take minutes to begin."),
        "HOLDFAST_COMPILE_S": Default("1800", "Large models take long to compile."),
        "HOLDFAST_CHECKPOINT_S": Default("1800", "Large checkpoints go to slow storage."),
        "HOLDFAST_EVALUATION_S": Default("3600", "Long evaluations are left alone."),
    },
}  # fmt: skip


def environment() -> dict[str, str]:
    """A copy of this process's environment, to be passed on to children."""
    return dict(os.environ)


def take_on(variables: Mapping[str, str]) -> None:
    """Make ``variables`` the whole environment of this process, also for what is written in C."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def read(
    name: str, *, flag: str | float | None = None, preset: str | None = None, environ: Mapping[str, str] | None = None
) -> Reading:
    """The value of ``name`` and its origin: flag, environment, preset or default. An empty variable counts as unset.

    Raises:
        BadValue: the text cannot be read as the variable's kind; the sentence says where it came from.
        UnknownName: there is no such preset.
    """
    row = _row(name)
    variables = os.environ if environ is None else environ
    given = _preset(preset).get(name) if preset else None
    if flag is not None:
        return Reading(name=name, value=_parse(row, str(flag), "flag"), origin="flag")
    if variables.get(name):
        return Reading(name=name, value=_parse(row, variables[name], "environment"), origin="environment")
    if given is not None:
        text = _worked_out(given.value, 1, None)
        return Reading(name=name, value=_parse(row, text, "preset"), origin=f"preset {preset}", why=given.why)
    value = None if row.default is None else _parse(row, str(row.default), "default")
    return Reading(name=name, value=value, origin="default")


def seconds(name: str, environ: Mapping[str, str] | None = None) -> float:
    """The value of a variable that holds a time, in seconds. Raises BadValue as :func:`read` does."""
    return float(_number(name, environ))


def count(name: str, environ: Mapping[str, str] | None = None) -> int:
    """The value of a variable that holds a whole number and is set or has a default. Raises BadValue."""
    return int(_number(name, environ))


def text(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The value of any variable as text; None where it is neither set nor has a default. Raises BadValue."""
    value = read(name, environ=environ).value
    return None if value is None else str(value)


def path(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """The value of a variable that holds a path, ``~`` replaced; None where it is neither set nor has a default."""
    value = text(name, environ)
    return Path(value).expanduser() if value else None


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where compiled parts are kept: $HOLDFAST_CACHE, else holdfast in $XDG_CACHE_HOME, else ~/.cache/holdfast."""
    own = path("HOLDFAST_CACHE", environ)
    return own or (path("XDG_CACHE_HOME", environ) or Path.home() / ".cache") / "holdfast"


def compiler(environ: Mapping[str, str] | None = None) -> str | None:
    """The C++ compiler that the user asks for with $CXX, or None."""
    return text("CXX", environ)


def preset_readings(
    preset: str, *, workers: int, cores: int | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Reading, ...]:
    """For each variable that ``preset`` cares about: the value it will have, and from where.

    ``workers`` is the number of workers on this node, ``cores`` that of the cores they share (this process's, where it
    is None). A variable set by the user stays as it is, also where it is set under another name.

    Raises:
        UnknownName: there is no such preset.
    """
    variables = os.environ if environ is None else environ
    found = []
    for name, given in _preset(preset).items():
        own = next((alias for alias in (name, *_row(name).aliases) if variables.get(alias)), None)
        if own is None:
            value = _worked_out(given.value, workers, cores)
            found.append(Reading(name=name, value=value, origin=f"preset {preset}", why=given.why))
        elif own == name:
            found.append(Reading(name=name, value=variables[name], origin="environment"))
        else:
            found.append(Reading(name=name, value=None, origin=f"environment, as {own}={variables[own]}"))
    return tuple(found)


def worker_environment(
    preset: str, *, workers: int, cores: int | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment for the workers of this node: the user's, with the preset's values in the gaps.

    Raises:
        UnknownName: there is no such preset.
    """
    variables = dict(os.environ if environ is None else environ)
    readings = preset_readings(preset, workers=workers, cores=cores, environ=variables)
    gaps = {given.name: str(given.value) for given in readings if given.origin.startswith("preset")}
    return {**variables, **gaps}


def gaps(defaults: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Those of ``defaults`` that are the user's under no name."""
    variables = os.environ if environ is None else environ
    return {
        name: value
        for name, value in defaults.items()
        if not any(variables.get(alias) for alias in (name, *_row(name).aliases))
    }


def _row(name: str) -> Setting:
    if name not in SETTINGS:
        raise InternalError(f"the variable {name} is not in the table of settings")
    return SETTINGS[name]


def _preset(name: str) -> Mapping[str, Default]:
    if name not in PRESETS:
        raise UnknownName("preset", name, PRESETS)
    return PRESETS[name]


def _worked_out(value: str, workers: int, cores: int | None) -> str:
    threads = (cores or len(os.sched_getaffinity(0))) // max(workers, 1)
    return {"{threads}": str(max(threads, 1)), "{threads/2}": str(max(threads // 2, 1))}.get(value, value)


def _number(name: str, environ: Mapping[str, str] | None) -> float:
    value = read(name, environ=environ).value
    if not isinstance(value, int | float):
        raise BadValue(name, why="it is not set, and has no default", next_step=f"set it: {_row(name).effect}")
    return value


def _parse(row: Setting, given: str, origin: str) -> str | int | float | Path:
    """The text as the kind of value that the row wants."""
    if row.kind == Kind.PATH:
        return Path(given)
    if row.kind == Kind.TEXT:
        return given
    wanted = f"one of {', '.join(row.choices)}" if row.choices else f"a number ({row.unit})" if row.unit else "a number"
    if row.kind == Kind.CHOICE:
        match = next((choice for choice in row.choices if choice.casefold() == given.casefold()), None)
        if match is not None:
            return match
    else:
        value = _as_number(row.kind, given)
        if value is not None and (row.minimum is None or value >= row.minimum):
            return value
        wanted += "" if row.minimum is None else f" of at least {row.minimum:g}"
    raise BadValue(row.name, why=f"{given!r}, from the {origin}, is not {wanted}", next_step=row.effect)


def _as_number(kind: Kind, given: str) -> int | float | None:
    try:
        value = int(given) if kind == Kind.COUNT else float(given)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - false for NaN alone
