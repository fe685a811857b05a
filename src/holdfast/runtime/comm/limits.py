"""How long a call may take for which the user names no limit: chosen by phase, size, and what the link was seen to do.

The numbers stand in ``timeouts.toml`` beside this file; a user's own file (``HOLDFAST_TIMEOUTS``) overrides them key by
key. Until a group has moved something large, what ``holdfast bench`` measured over as many ranks stands for what its
link can do (``holdfast/links.py``). A limit is worked out once for each group, phase and power of two of bytes, and is
a look into a dictionary then.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import deque
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from holdfast import links, settings
from holdfast.errors import BadValue, HoldfastError, MissingFile, UnknownName
from holdfast.measured.fit import Fit
from holdfast.runtime import recorder
from holdfast.runtime.comm import history
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.hosts import known_layout
from holdfast.runtime.comm.presence import Call, site

#: Smaller calls tell of latency, and not of bandwidth.
LEAST_MEASURED_BYTES = 1 << 20
#: Calls whose bandwidth is remembered; the fastest of them counts, as the others waited for somebody.
_REMEMBERED = 16
_TIMES = frozenset({"training", "evaluation", "small", "ceiling"})
_MOST_LIMITS = 4096

_Key = tuple[int, str, tuple[str, float], int]
_limits: dict[_Key, float | None] = {}
_bandwidths: dict[tuple[int, str], deque[float]] = {}
#: Of the groups that were asked for: what was measured over as many ranks before this job.
_fits: dict[tuple[int, str], Fit | None] = {}


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What ``timeouts.toml`` says, and the user's file over it; times in seconds."""

    training: float
    evaluation: float
    evaluation_words: tuple[str, ...]
    small: float
    small_bytes: int
    bandwidth_factor: float
    ceiling: float


def limit_s(state: GroupState, nbytes: int, *, timeout: float | str | None = None) -> float:
    """The seconds that a call in this group may take, which moves ``nbytes``: ``timeout`` where there is one.

    Raises:
        BadValue: the time-out is no positive time, or the user's file cannot be used.
        MissingFile, UnknownName: there is no such file, or it has a key that does not exist.
    """
    if timeout is not None:
        return explicit(timeout)
    key = (state.epoch, state.name, recorder.current_phase(), nbytes.bit_length())
    found = _limits.get(key, -1.0)
    if found is None:  # history tells of this group and size: which line calls makes a difference
        return _chosen(key, site())
    if found > 0:
        return found
    _look_up(state)
    return _choose(key)


def explicit(timeout: float | str) -> float:
    """The user's own limit in seconds.

    Raises:
        BadValue: it is no time, not positive, or not a number.
    """
    given = recorder.seconds(timeout)
    if not (math.isfinite(given) and given > 0):
        raise BadValue("a time limit", why=f"{timeout!r} is not a positive time", next_step="write 90s, 10m or 2h")
    return given


def measured(state: GroupState, nbytes: int, seconds: float) -> None:
    """Learn from a call that moved ``nbytes`` in so many seconds what this group's link can do."""
    if nbytes < LEAST_MEASURED_BYTES or not seconds > 0:
        return
    seen = _bandwidths.setdefault((state.epoch, state.name), deque(maxlen=_REMEMBERED))
    before = max(seen, default=0.0)
    seen.append(nbytes / seconds)
    if not 0.8 < before / max(seen) < 1.25:
        _limits.clear()


def bandwidth(state: GroupState) -> float | None:
    """Bytes a second that calls in this group reached of late; None where none was large enough to tell."""
    return _bandwidth(state.epoch, state.name)


def _bandwidth(epoch: int, name: str) -> float | None:
    return max(_bandwidths.get((epoch, name), ()), default=None)


def note(call: Call, seconds: float, nbytes: int, outcome: history.Outcome, *, absent: bool = False) -> None:
    """Tell the history of a call that took longer than a second, or timed out; ``absent``: ranks did not come.

    Never raises: it is called while an error of the call's own is on its way.
    """
    with suppress(HoldfastError):  # a file of limits that cannot be read was told of by whoever asked for a limit
        name, _ = recorder.current_phase()
        ours = call.limit_s >= _floor(name, nbytes)  # a shorter one is the user's own, and not ours to make longer
        about = history.About(phase=phase_kind(name), bandwidth=bandwidth(call.state), absent=absent, ours=ours)
        history.note(call, seconds, nbytes, outcome, about)


def forget() -> None:
    """Read the file and the history anew, and forget what was measured."""
    _limits.clear()
    _bandwidths.clear()
    _fits.clear()
    _kept.cache_clear()
    policy.cache_clear()


history.listeners.append(_limits.clear)


# ---- the choice


def phase_kind(name: str) -> str:
    """``training`` or ``evaluation``: as what a phase of this name counts."""
    folded = name.casefold()
    return "evaluation" if any(word.casefold() in folded for word in policy().evaluation_words) else "training"


def _choose(key: _Key) -> float:
    if len(_limits) >= _MOST_LIMITS:
        _limits.clear()
    _, group, (phase, _), size = key
    if history.concerns(group, size, phase_kind(phase)):
        _limits[key] = None
        return _chosen(key, site())
    _limits[key] = _by_policy(key)
    return _by_policy(key)


def _chosen(key: _Key, place: str) -> float:
    """By policy, and by what was learnt of calls like this from this line."""
    _, group, (phase, _), size = key
    usual = _by_policy(key)
    learnt = history.advice(group, size, phase_kind(phase), place)
    return max(usual, min(learnt.least_limit_s, policy().ceiling))


def _by_policy(key: _Key) -> float:
    """The floor of the phase and size, or more on a slow link."""
    rules = policy()
    epoch, group, (phase, budget_s), size = key
    nbytes = 1 << size  # as much as a call of this power of two may move
    known = _bandwidth(epoch, group)
    expected_s = nbytes / known if known else _by_fit(_fits.get((epoch, group)), nbytes)
    return max(_floor(phase, nbytes), budget_s, min(rules.bandwidth_factor * expected_s, rules.ceiling))


def _by_fit(fit: Fit | None, nbytes: int) -> float:
    """Seconds by the slower end of what was measured; 0 where nothing was."""
    return 0.0 if fit is None else fit.latency_interval_s[1] + nbytes / fit.bandwidth_interval[0]


def _look_up(state: GroupState) -> None:
    """Find what was measured over as many ranks as the group has, once."""
    key = (state.epoch, state.name)
    if key in _fits:
        return
    _fits[key] = None
    if kept := _kept():
        layout, backend = known_layout(state), state.backend_for(state.device.type)
        _fits[key] = links.known(kept, backend=backend, ranks=len(state.ranks), hosts=len(layout) if layout else None)


@cache
def _kept() -> tuple[Fit, ...]:
    """All that was measured; nothing where the disk does not answer in time."""
    read: list[tuple[Fit, ...]] = []
    history.within(history.DISK_LIMIT_S, lambda: read.append(links.kept()))
    return read[0] if read else ()


def _floor(phase: str, nbytes: int) -> float:
    rules = policy()
    if phase_kind(phase) == "evaluation":
        return rules.evaluation
    return rules.small if nbytes <= rules.small_bytes and not phase else rules.training


# ---- the file


@cache
def policy() -> Policy:
    """Ours, and the user's file over it. Raises as :func:`read`."""
    own = settings.path("HOLDFAST_TIMEOUTS")
    shipped = tomllib.loads(files(__package__).joinpath("timeouts.toml").read_text(encoding="utf-8"))
    return msgspec.convert({**_in_seconds(shipped), **(read(own) if own is not None else {})}, Policy)


def read(path: Path) -> dict[str, Any]:
    """The keys of a user's file, times in seconds.

    Raises:
        MissingFile: it cannot be opened.
        BadValue: it is no TOML, or a value makes no sense; the sentence has the line.
        UnknownName: a key that does not exist.
    """
    try:
        text = path.read_text(encoding="utf-8")
        given = tomllib.loads(text)
    except OSError as error:
        raise MissingFile(path, why=(error.strerror or str(error)).lower(),
                          next_step="correct HOLDFAST_TIMEOUTS, or unset it") from error  # fmt: skip
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"{path} (HOLDFAST_TIMEOUTS)", why=f"it is no TOML: {error}", next_step=_EXAMPLE) from error
    for key, value in given.items():
        where = f"{path}, line {_line(text, key)}"
        if key not in Policy.__struct_fields__:
            raise UnknownName(f"time limit (in {where}) called", key, Policy.__struct_fields__)
        why = _wrong(key, value)
        if why:
            raise BadValue(f"{key} in {where},", why=why, next_step=_EXAMPLE)
    return _in_seconds(given)


_EXAMPLE = 'write lines such as training = "20m"; the keys are ' + ", ".join(Policy.__struct_fields__)


def _in_seconds(given: dict[str, Any]) -> dict[str, Any]:
    return {key: recorder.seconds(value) if key in _TIMES else value for key, value in given.items()}


def _wrong(key: str, value: Any) -> str:
    """Why it cannot be the value of that key; empty where it can."""
    if key in _TIMES:
        try:
            good = not isinstance(value, bool) and isinstance(value, int | float | str) and explicit(value) > 0
        except BadValue:
            good = False
        return "" if good else f"{value!r} is not a positive time"
    if key == "evaluation_words":
        good = isinstance(value, list) and all(isinstance(word, str) and word for word in value)
        return "" if good else f"{value!r} is not a list of words"
    kinds = (int,) if key == "small_bytes" else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool) and 0 <= float(value) < math.inf:
        return ""
    return f"{value!r} is not a {'whole ' if key == 'small_bytes' else ''}number of at least 0"


def _line(text: str, key: str) -> int:
    """The line on which a key of the file stands; 1 where it is written in a way that is not looked for."""
    mark = re.compile(rf"""^\s*\[?\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if mark.match(line)), 1)
