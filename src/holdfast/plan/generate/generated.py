"""The result of writing a recipe in one format."""

from __future__ import annotations

import msgspec


class UnmappedSetting(msgspec.Struct, frozen=True, rename={"setting": "what"}):
    """A setting that is not converted: its name in the source, and the reason."""

    setting: str
    why: str


class ConfigFile(msgspec.Struct, frozen=True):
    """A file to be written: its name, text and purpose."""

    name: str
    text: str
    purpose: str


class WrittenConfig(msgspec.Struct, frozen=True):
    """Files of a recipe in one format, and the settings that the format lacks."""

    files: tuple[ConfigFile, ...]
    unmapped: tuple[UnmappedSetting, ...] = ()
    #: Differences of settings that are written.
    warnings: tuple[str, ...] = ()
