"""Reads settings out of a configuration that others wrote: by dotted key, and noting all that is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import yaml

from holdfast.errors import BadValue

_Value = TypeVar("_Value")
_DEEPEST, _MOST, _LONGEST, _MOST_BRACKETS = 12, 10_000, 1 << 20, 1000
#: What the Trainer of transformers and Accelerate fill in from their own settings.
AUTO = "auto"
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")
_LARGEST = 1 << 62


def parse(text: str, origin: str) -> dict[str, Any]:
    """The mapping that a JSON or YAML file holds; ``origin`` is its name for people.

    Raises:
        BadValue: it is neither, or no mapping, or says something twice.
    """
    if len(text) > _LONGEST:
        raise BadValue(origin, why="it is larger than 1 MiB, so it is no configuration")
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except BadValue as error:
        raise BadValue(origin, why=error.why) from error
    except RecursionError as error:
        raise BadValue(origin, why="it is nested too deeply") from error
    except ValueError as wrong:
        try:
            found = _yaml(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            said = " ".join(str(wrong if text.lstrip().startswith("{") else error).split())
            raise BadValue(origin, why=f"it is neither JSON nor YAML ({said[:200]})") from error
    if not isinstance(found, dict):
        raise BadValue(origin, why="it holds no settings by name")
    return found


def _yaml(text: str) -> object:
    """Without aliases, with which a few lines can stand for more than there is memory.

    The parser's time goes with the square of open brackets, so there may be few.
    """
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        raise ValueError("too many brackets")
    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
        raise ValueError("it has aliases")
    found: object = yaml.safe_load(text)
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadValue("the file", why=f"{twice[:100]!r} stands in it twice")
    return seen


class Fields:
    """Settings by dotted key. What is asked for counts as ``used``; what is wrong is in ``problems``."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.given = dict(_flat(config))
        self.used: set[str] = set()
        self.problems: list[str] = []
        #: Said to no effect, where it stands: key, and why.
        self.idle: dict[str, str] = {}

    def __contains__(self, key: str) -> bool:
        """It is said, and to more than "auto"."""
        return self.given.get(key, AUTO) not in (AUTO, None)

    def _take(self, key: str) -> Any:
        self.used.add(key)
        return self.given[key] if key in self else None

    def _wrong(self, key: str, wanted: str) -> None:
        self.problems.append(f"{key} has to be {wanted}, and is {str(self.given[key])[:50]!r}")

    def number(self, key: str, default: float, *, least: float = 0.0) -> float:
        """A number of at least ``least``; texts such as 1e-5, which YAML does not take for a number, are read too."""
        value = self._take(key)
        if value is None:
            return default
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not least <= number < _LARGEST:
            self._wrong(key, f"a number of {least:g} or more")
            return default
        return number

    def whole(self, key: str, default: int, *, least: int = 0) -> int:
        """A whole number; 5e8 is one."""
        number = self.number(key, default, least=least)
        if number != int(number):
            self._wrong(key, "a whole number")
            return default
        return int(number)

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false, also where they are texts."""
        value = self._take(key)
        if value is None:
            return default
        said = str(value).casefold()
        if said not in (*_YES, *_NO):
            self._wrong(key, "true or false")
        return said in _YES

    def word(self, key: str, known: Mapping[str, _Value], default: _Value) -> _Value:
        """What one of the ``known`` words stands for, in any case."""
        value = self._take(key)
        if value is None:
            return default
        found = known.get(str(value).casefold())
        if found is None:
            self._wrong(key, f"one of {', '.join(known)}")
            return default
        return found

    def text(self, key: str, default: str = "") -> str:
        """As it stands."""
        value = self._take(key)
        return default if value is None else str(value)[:500]

    def pair(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """Two numbers from 0 to 1."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, (list, tuple)) and len(value) == len(default):
            try:
                found = (float(value[0]), float(value[1]))
            except (TypeError, ValueError, OverflowError):
                found = (math.nan, math.nan)
            if all(0 <= each < 1 for each in found):
                return found
        self._wrong(key, "two numbers from 0 to 1")
        return default

    def idle_unless(self, key: str, *, works: bool, why: str) -> bool:
        """Whether a key has an effect; one that is said and has none is noted."""
        if key in self and not works:
            self.idle[key] = why
        return works

    def autos(self) -> list[str]:
        """Keys that are left to whoever launches."""
        return [key for key, value in self.given.items() if value == AUTO]

    def check(self, origin: str) -> None:
        """All that is wrong, at once.

        Raises:
            BadValue: something is.
        """
        if self.problems:
            raise BadValue(origin, why="; ".join(dict.fromkeys(self.problems)))


def _flat(config: Mapping[str, Any], above: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > _DEEPEST or len(config) > _MOST:
        raise BadValue("the configuration", why="it is nested too deeply, or has too many settings")
    for name, value in config.items():
        key = f"{above}{str(name)[:200]}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{key}.", depth + 1)
        elif value is not None and value != {}:
            yield key, value


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as mappings in one another; those whose value is None are left out."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        if value is None:
            continue
        *above, name = key.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[name] = value
    return tree
