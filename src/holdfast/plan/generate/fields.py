"""Read settings by dotted key from untrusted configurations, and collect all problems."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import yaml

from holdfast.core.errors import InvalidValue

_Value = TypeVar("_Value")
_MAX_DEPTH, _MAX_NODES, _MAX_CHARACTERS, _MAX_BRACKETS = 12, 10_000, 1 << 20, 1000
#: Value that transformers' Trainer and Accelerate replace by their own settings.
AUTO = "auto"
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")
_LARGEST = 1 << 62


def parse_config(text: str, origin: str) -> dict[str, Any]:
    """Parse a JSON or YAML mapping; ``origin`` names it in messages.

    Raises:
        InvalidValue: neither JSON nor YAML, not a mapping, or a duplicate key.
    """
    if len(text) > _MAX_CHARACTERS:
        raise InvalidValue(origin, why="larger than 1 MiB, so not a configuration")
    try:
        config = json.loads(text, object_pairs_hook=_reject_duplicates)
    except InvalidValue as error:
        raise InvalidValue(origin, why=error.why) from error
    except RecursionError as error:
        raise InvalidValue(origin, why="nested too deeply") from error
    except ValueError as json_error:
        try:
            config = _load_yaml(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            message = " ".join(str(json_error if text.lstrip().startswith("{") else error).split())
            raise InvalidValue(origin, why=f"neither JSON nor YAML ({message[:200]})") from error
    if not isinstance(config, dict):
        raise InvalidValue(origin, why="not a mapping of settings")
    return config


def _load_yaml(text: str) -> object:
    """Load YAML without aliases, with which a few lines could exhaust the memory.

    The parser is quadratic in open brackets, so their number is limited.
    """
    if text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise ValueError("too many brackets")
    if any(
        isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)
    ):
        raise ValueError("aliases are not allowed")
    document: object = yaml.safe_load(text)
    return document


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise InvalidValue("the file", why=f"duplicate key {duplicate[:100]!r}")
    return mapping


class ConfigReader:
    """Settings by dotted key.

    Keys that were read are in ``used``, invalid values in ``problems``.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.values = dict(_flatten(config))
        self.used: set[str] = set()
        self.problems: list[str] = []
        #: Ineffective settings: key and reason.
        self.ignored: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        """Return whether the key is set to a value other than "auto"."""
        return self.values.get(key, AUTO) not in (AUTO, None)

    def _get(self, key: str) -> Any:
        self.used.add(key)
        return self.values[key] if key in self else None

    def _note_invalid(self, key: str, expected: str) -> None:
        self.problems.append(f"{key} must be {expected}, not {str(self.values[key])[:50]!r}")

    def read_float(self, key: str, default: float, *, least: float = 0.0) -> float:
        """Read a number of at least ``least``; texts such as 1e-5 in YAML are accepted."""
        value = self._get(key)
        if value is None:
            return default
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not least <= number < _LARGEST:
            self._note_invalid(key, f"a number of {least:g} or more")
            return default
        return number

    def read_int(self, key: str, default: int, *, least: int = 0) -> int:
        """Read an integer; 5e8 is valid."""
        number = self.read_float(key, default, least=least)
        if number != int(number):
            self._note_invalid(key, "an integer")
            return default
        return int(number)

    def read_bool(self, key: str, *, default: bool = False) -> bool:
        """Read true or false, also as text."""
        value = self._get(key)
        if value is None:
            return default
        word = str(value).casefold()
        if word not in (*_YES, *_NO):
            self._note_invalid(key, "true or false")
        return word in _YES

    def read_choice(self, key: str, known: Mapping[str, _Value], default: _Value) -> _Value:
        """Read one of the ``known`` words, case-insensitively, and return its value."""
        value = self._get(key)
        if value is None:
            return default
        choice = known.get(str(value).casefold())
        if choice is None:
            self._note_invalid(key, f"one of {', '.join(known)}")
            return default
        return choice

    def read_text(self, key: str, default: str = "") -> str:
        """Read a text."""
        value = self._get(key)
        return default if value is None else str(value)[:500]

    def read_pair(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """Read two numbers from 0 to 1."""
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, (list, tuple)) and len(value) == len(default):
            try:
                pair = (float(value[0]), float(value[1]))
            except (TypeError, ValueError, OverflowError):
                pair = (math.nan, math.nan)
            if all(0 <= number < 1 for number in pair):
                return pair
        self._note_invalid(key, "two numbers from 0 to 1")
        return default

    def check_effective(self, key: str, *, works: bool, why: str) -> bool:
        """Return whether a key has an effect; record one that is set without effect."""
        if key in self and not works:
            self.ignored[key] = why
        return works

    def auto_keys(self) -> list[str]:
        """Return the keys that the launcher fills in."""
        return [key for key, value in self.values.items() if value == AUTO]

    def raise_problems(self, origin: str) -> None:
        """Raise all problems at once.

        Raises:
            InvalidValue: there are problems.
        """
        if self.problems:
            raise InvalidValue(origin, why="; ".join(dict.fromkeys(self.problems)))


def _flatten(
    config: Mapping[str, Any], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH or len(config) > _MAX_NODES:
        raise InvalidValue("the configuration", why="nested too deeply, or too many settings")
    for name, value in config.items():
        key = f"{prefix}{str(name)[:200]}"
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{key}.", depth + 1)
        elif value is not None and value != {}:
            yield key, value


def nest_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Convert dotted keys to nested mappings, without those whose value is None."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        if value is None:
            continue
        *parents, name = key.split(".")
        level = tree
        for part in parents:
            level = level.setdefault(part, {})
        level[name] = value
    return tree
