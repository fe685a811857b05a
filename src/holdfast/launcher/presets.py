"""The presets of ``holdfast run``: variables of the table, and those of this host's network."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast.core import settings
from holdfast.core.errors import InvalidValue
from holdfast.core.settings import SettingReading
from holdfast.core.text import os_error_reason
from holdfast.host.checks import CheckContext
from holdfast.host.variable_recommendation import parse_endpoint, recommend_here
from holdfast.host.variable_rules.recommended import JobProfile

#: Presets whose variables depend on this host's interfaces, RDMA ports and routes.
NETWORKS = (JobProfile.INFINIBAND, JobProfile.ROCE, JobProfile.ETHERNET)
#: Variables that act only in scripts that read them with ``holdfast.loader_settings()``.
LOADER_VARIABLES = (
    "HOLDFAST_LOADER_CACHE",
    "HOLDFAST_LOADER_PREFETCH",
    "HOLDFAST_LOADER_WORKERS",
)
_READER = b"loader_settings"
_MAX_SCRIPT_BYTES = 4 << 20


class AppliedPreset(msgspec.Struct, frozen=True, kw_only=True):
    """What the presets of a job set and keep (``readings``), and why other variables are not set.

    ``name`` is empty without a preset.
    """

    name: str = ""
    readings: tuple[SettingReading, ...] = ()
    not_set: tuple[str, ...] = ()

    def messages(self) -> Iterator[str]:
        """Yield one line about what is set, and one about each variable that is kept or not set."""
        gaps = settings.filled_gaps(self.readings)
        if gaps:
            pairs = " ".join(f"{name}={value}" for name, value in sorted(gaps.items()))
            yield f"preset {self.name} sets {pairs}"
        for reading in self.readings:
            if reading.name not in gaps:
                value = "" if reading.value is None else f"={reading.value}"
                yield f"preset {self.name} keeps {reading.name}{value} ({reading.origin})"
        for why in self.not_set:
            yield f"preset {self.name} does not set {why}"


def apply_preset(text: str | None, options: argparse.Namespace, workers: int) -> AppliedPreset:
    """Return what the presets in ``text`` (names with commas) set for this node's workers.

    Raises:
        UnknownName: there is no such preset.
    """
    if not text:
        return AppliedPreset()
    names = settings.preset_names(text)
    name = ",".join(names)
    readings = settings.preset_readings(name, workers=workers)
    not_set: list[str] = []
    for profile in (each for each in NETWORKS if each in names):
        advice, missing = _network_settings(profile, options, workers)
        known = {reading.name for reading in readings}
        readings += tuple(each for each in advice if each.name not in known)
        not_set += missing
    return AppliedPreset(name=name, readings=readings, not_set=tuple(not_set))


def _network_settings(
    profile: JobProfile, options: argparse.Namespace, workers: int
) -> tuple[list[SettingReading], tuple[str, ...]]:
    """Return the variables for this host's network, and why others are not set."""
    nodes = int(str(options.nnodes).rpartition(":")[2])
    if nodes == 1:
        return [], ("variables of the network: the job has one host",)
    context = CheckContext(
        environ=settings.current_environment(), workers=workers, endpoint=_endpoint(options)
    )
    found = recommend_here(context, profile, nodes, here_only=True)
    origin = f"preset {profile}"
    readings = [
        SettingReading(name=each.name, value=each.value, origin=origin, why=each.why)
        for each in found.variables
    ]
    return readings, found.left_out


def _endpoint(options: argparse.Namespace) -> tuple[str, int] | None:
    """Return host and port of the job's rendezvous; None if the options have none."""
    text, port = options.rdzv_endpoint, ""
    if not text and options.rdzv_backend == "static":
        text, port = options.master_addr, str(options.master_port or "")
    try:
        return parse_endpoint(text, port) if text else None
    except InvalidValue:
        return None


def unread_loader_settings(applied: AppliedPreset, script: str) -> str | None:
    """Return that the script does not read the loader settings of the preset; None if it may."""
    names = [name for name in settings.filled_gaps(applied.readings) if name in LOADER_VARIABLES]
    path = Path(script)
    if not names or path.suffix != ".py":
        return None
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_SCRIPT_BYTES)
    except OSError as error:
        return f"{path.name} cannot be read: {os_error_reason(error)}"
    if _READER in text:
        return None
    return (
        f"{path.name} does not call holdfast.loader_settings(): without it, "
        f"{', '.join(sorted(names))} have no effect"
    )
