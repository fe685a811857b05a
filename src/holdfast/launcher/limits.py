"""List every time limit of a run with its origin: flag, environment, preset, file or default."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.core import settings
from holdfast.core.settings import SettingKind
from holdfast.core.text import format_duration
from holdfast.recorder import parse_duration

#: Settings with a flag of their own, by the name of the option.
_FLAGS = {"HOLDFAST_ACT_AFTER": "act_after", "HOLDFAST_GROUP_TIMEOUT_S": "group_timeout"}


class LimitOrigin(NamedTuple):
    """A limit: its name, its value as text, and what set it."""

    name: str
    value: str
    origin: str


def list_limits(options: dict[str, object]) -> list[LimitOrigin]:
    """Return the limits of a run with these parsed options of ``holdfast run``.

    Raises:
        UsageError: an option, a variable or the file of timeouts is invalid.
    """
    preset = options.get("preset")
    limits = []
    for name, row in settings.SETTINGS.items():
        if row.kind is not SettingKind.SECONDS or not name.startswith("HOLDFAST_"):
            continue
        option = _FLAGS.get(name, "")
        flag = options.get(option)
        reading = settings.read_setting(
            name,
            flag=None if flag is None else str(flag),
            preset=None if preset is None else str(preset),
        )
        origin = f"--{option.replace('_', '-')}" if reading.origin == "flag" else reading.origin
        value = reading.value
        shown = format_duration(value) if isinstance(value, int | float) else "torch's own"
        limits.append(LimitOrigin(name, shown, origin))
    return limits + _restart_limits(options) + _collective_limits()


def _restart_limits(options: dict[str, object]) -> list[LimitOrigin]:
    limits = []
    for flag, default in (("--window", "1h"), ("--backoff", "1s")):
        text = options[flag.removeprefix("--")]
        value = format_duration(parse_duration(str(text), flag))
        limits.append(LimitOrigin(flag, value, "default" if text == default else flag))
    return limits


def _collective_limits() -> list[LimitOrigin]:
    """Return the policy of collectives without a timeout of their own."""
    from holdfast.training.collectives import timeouts  # noqa: PLC0415 - imports torch

    return [
        LimitOrigin(
            f"collectives: {key}",
            format_duration(value)
            if key in timeouts.DURATIONS and isinstance(value, float)
            else ", ".join(value)
            if isinstance(value, tuple)
            else f"{value:,}",
            origin,
        )
        for key, value, origin in timeouts.describe_policy()
    ]
