"""Every environment variable that holdfast reads or sets, and the presets: one typed table.

``settings.json`` has one row per line. Variables of other software are in
:mod:`holdfast.core.variable_table`. Only this module accesses ``os.environ``. Precedence: flag,
environment, preset, default; :func:`read_setting` reports the origin. A preset fills gaps and never
overrides what the user set, under any alias. ``docs/settings.md`` is generated from
:data:`SETTINGS` and :data:`PRESETS`.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path

import msgspec

from holdfast.core.errors import InternalError, InvalidValue, UnknownName
from holdfast.core.variable_table import parse_release

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class SettingKind(StrEnum):
    """How the text of a variable is parsed."""

    SECONDS = "seconds"
    COUNT = "count"
    PATH = "path"
    TEXT = "text"
    CHOICE = "choice"


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    minimum: int | float | None = None
    owner: str = "holdfast"
    since: str = "0.1.0"
    until: str | None = None
    too_late: str = "the start of `holdfast run`"
    set_by: str = "you"
    aliases: tuple[str, ...] = ()


class SettingReading(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a variable (None: not set), its origin, and the reason if a preset set it."""

    name: str
    value: str | int | float | Path | None
    origin: str
    why: str = ""


class SettingDefault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A preset's value and the reason for it.

    ``{threads}`` is computed from the number of cores. The value applies to torch from
    ``from_torch`` on, and before ``before_torch``.
    """

    value: str
    why: str
    from_torch: str = ""
    before_torch: str = ""

    def applies_to(self, torch: tuple[int, ...]) -> bool:
        """Return whether this release of torch, () if unknown, reads the variable by this name."""
        if not torch:
            return not self.before_torch
        return torch >= parse_release(self.from_torch) and (
            not self.before_torch or torch < parse_release(self.before_torch)
        )


class _SettingTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    settings: tuple[Setting, ...]
    presets: dict[str, dict[str, SettingDefault]]


_TABLES = msgspec.json.decode(
    Path(__file__).with_name("settings.json").read_bytes(), type=_SettingTables
)

#: Every variable that holdfast reads or sets, by name.
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _TABLES.settings}

#: Preset -> variable -> value and reason. Each adds to ``basic`` or replaces a value of it.
#:
#: Not in the presets, on purpose: workarounds that cost bandwidth (NCCL_P2P_DISABLE, NCCL_ALGO),
#: variables that nothing reads (NCCL_TIMEOUT), CUDA_LAUNCH_BLOCKING, which serialises the GPU, and
#: TORCH_NCCL_DESYNC_DEBUG, which has crashed jobs in the field. Those without own values depend on
#: the host: the launcher adds them.
PRESETS: Mapping[str, Mapping[str, SettingDefault]] = {
    name: {**_TABLES.presets["basic"], **preset} for name, preset in _TABLES.presets.items()
}


def current_environment() -> dict[str, str]:
    """Return a copy of this process's environment, for child processes."""
    return dict(os.environ)


def disable_colors() -> None:
    """Let this process and its children print no colors."""
    os.environ["NO_COLOR"] = "1"


def apply_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment of this process by ``variables``, for C code too."""
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def set_variable(name: str, value: str) -> None:
    """Set a variable of the table in this process, for the processes that it starts too."""
    os.environ[_find_row(name).name] = value


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
    default = find_preset(preset).get(name) if preset else None
    if flag is not None:
        return SettingReading(name=name, value=_parse(row, str(flag), "flag"), origin="flag")
    if variables.get(name):
        return SettingReading(
            name=name, value=_parse(row, variables[name], "environment"), origin="environment"
        )
    if default is not None:
        text = _resolve_threads(default.value, 1, None)
        return SettingReading(
            name=name, value=_parse(row, text, "preset"), origin=f"preset {preset}", why=default.why
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
    preset: str,
    *,
    workers: int,
    cores: int | None = None,
    environ: Mapping[str, str] | None = None,
    torch: tuple[int, ...] | None = None,
) -> tuple[SettingReading, ...]:
    """Return the effective value and origin of each variable of ``preset``.

    ``workers`` is the number of workers on this node, ``cores`` the number of cores they share
    (default: this process's), ``torch`` the release of torch (default: the installed one). A
    variable that the user set, under any alias, is kept.

    Raises:
        UnknownName: there is no such preset.
    """
    variables = os.environ if environ is None else environ
    readings = []
    for name, default in find_preset(preset, torch).items():
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


def filled_gaps(readings: Iterable[SettingReading]) -> dict[str, str]:
    """Return the variables that a preset sets, because the user did not."""
    return {
        reading.name: str(reading.value)
        for reading in readings
        if reading.origin.startswith("preset ")
    }


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


def preset_names(text: str) -> tuple[str, ...]:
    """Return the presets in a list with commas; ``gpu_cache`` is ``gpu-cache``.

    Raises:
        UnknownName: there is no such preset.
    """
    names = tuple(each.strip().casefold().replace("_", "-") for each in text.split(","))
    for name in names:
        if name not in PRESETS:
            raise UnknownName("preset", name, PRESETS)
    return names


def find_preset(text: str, torch: tuple[int, ...] | None = None) -> Mapping[str, SettingDefault]:
    """Return the values of one or several presets for a release of torch, by default the installed.

    Raises:
        UnknownName: there is no such preset.
    """
    values = {
        variable: default
        for name in ("basic", *preset_names(text))
        for variable, default in _TABLES.presets[name].items()
    }
    release = installed_torch() if torch is None else torch
    return {name: default for name, default in values.items() if default.applies_to(release)}


@cache
def installed_torch() -> tuple[int, ...]:
    """Return the release of the installed torch, () if there is none; nothing is imported.

    importlib.metadata would add its import, a third of the recorder's start, to every worker.
    """
    folders = (Path(folder) for folder in sys.path if folder)
    names = (path.name for folder in folders for path in folder.glob("torch-*-info"))
    return parse_release(next(names, ""))


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
    """Parse a duration in ms, s, m, h, d or without unit; return seconds, None for other text."""
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", text)
    return None if match is None else float(match[1]) * _UNITS[match[2]]


def _to_number(kind: SettingKind, text: str) -> int | float | None:
    try:
        value = int(text) if kind == SettingKind.COUNT else float(text)
    except ValueError:
        return parse_time(text) if kind == SettingKind.SECONDS else None
    return value if math.isfinite(value) else None
