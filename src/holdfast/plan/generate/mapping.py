"""Mapping of DeepSpeed's settings to FSDP2 and back: the table behind the guide and ``--migrate``.

``mapping.json`` has one row per line. Keys are those of DeepSpeed 0.19.8 (runtime/config.py,
runtime/zero/config.py, zero/offload_config.py, runtime/precision_config.py, runtime/constants.py)
and removed ones of earlier versions; FSDP2's settings those of ``fsdp2.fsdp2_settings``;
Accelerate's those of version 1.15 (commands/config/config_args.py, utils/launch.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec


class SettingMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dotted key of DeepSpeed, with its counterpart ``fsdp2`` or the ``reason`` there is none.

    ``covers_block``: the mapping applies to all keys below it. ``torch``: the counterpart in code;
    ``accelerate`` and ``accelerate_deepspeed``: the keys in Accelerate's file with FSDP2 and with
    DeepSpeed; ``difference``: silent differences.
    """

    key: str
    fsdp2: str = ""
    torch: str = ""
    accelerate: str = ""
    accelerate_deepspeed: str = ""
    reason: str = ""
    difference: str = ""
    #: The values to which the difference applies; empty: all.
    values: tuple[str, ...] = ()
    covers_block: bool = False

    def difference_for(self, value: str) -> str:
        """Return the silent difference of a key with that value."""
        return self.difference if not self.values or value in self.values else ""

    @property
    def is_mapped(self) -> bool:
        """Return whether the key has a counterpart."""
        return bool(self.fsdp2)


class _UnsupportedKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys below ``prefix`` without a counterpart, and why; ``.*`` includes all keys below."""

    why: str
    names: tuple[str, ...]
    prefix: str = ""

    def mappings(self) -> Iterator[SettingMapping]:
        """Yield a row per key."""
        for name in self.names:
            yield SettingMapping(
                key=self.prefix + name.removesuffix(".*"),
                reason=self.why,
                covers_block=name.endswith(".*"),
            )


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mapped: tuple[SettingMapping, ...]
    unsupported: tuple[_UnsupportedKeys, ...]


_TABLE = msgspec.json.decode(Path(__file__).with_name("mapping.json").read_bytes(), type=_Table)

#: By key, mapped ones first.
SETTING_MAPPINGS: Mapping[str, SettingMapping] = {
    row.key: row
    for row in (*_TABLE.mapped, *(row for keys in _TABLE.unsupported for row in keys.mappings()))
}


def find_mapping(key: str) -> SettingMapping | None:
    """Return the mapping of a key or of its block; None if DeepSpeed has no such key."""
    mapping = SETTING_MAPPINGS.get(key)
    while mapping is None and "." in key:
        key = key.rpartition(".")[0]
        parent = SETTING_MAPPINGS.get(key)
        mapping = parent if parent is not None and parent.covers_block else None
    return mapping
