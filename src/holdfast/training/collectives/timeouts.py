"""Choose the timeout of a call without one, by phase, size and the measured speed of the link.

The numbers are in ``timeouts.toml`` beside this file; a user's file (``HOLDFAST_TIMEOUTS``)
overrides them key by key. Until a group has moved a large tensor, the measurements of ``holdfast
bench`` over as many ranks estimate its link (``core/link_measurements.py``). A timeout is computed
once for each group, phase and power of two of bytes, and looked up from then on.
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

from holdfast import recorder
from holdfast.core import link_measurements, settings
from holdfast.core.errors import HoldfastError, InvalidValue, MissingFile, UnknownName
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.core.text import os_error_reason
from holdfast.training.collectives import timeout_history
from holdfast.training.collectives.groups.arrivals import BoundedCall, find_call_site
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.groups.rank_hosts import known_host_layout

#: Smaller calls measure latency, not bandwidth.
MIN_MEASURED_BYTES = 1 << 20
#: Latest calls whose bandwidth is kept; the fastest counts, because the others waited for a rank.
_KEPT_BANDWIDTHS = 16
#: Keys of the file that are durations.
DURATIONS = frozenset({"training", "evaluation", "small", "ceiling"})
_MAX_LIMITS = 4096

#: Epoch, group name, phase with its budget in seconds, and bit length of the bytes.
_Key = tuple[int, str, tuple[str, float], int]
_limits: dict[_Key, float | None] = {}
_bandwidths: dict[tuple[int, str], deque[float]] = {}
#: Earlier measurements over as many ranks as each known group has.
_fits: dict[tuple[int, str], AlphaBetaFit | None] = {}


class TimeoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of ``timeouts.toml``, overridden by the user's file; durations in seconds."""

    training: float
    evaluation: float
    evaluation_words: tuple[str, ...]
    small: float
    small_bytes: int
    bandwidth_factor: float
    ceiling: float


def choose_limit(state: GroupState, nbytes: int, *, timeout: float | str | None = None) -> float:
    """Return the seconds that a call in this group may take to move ``nbytes``.

    Returns ``timeout`` if it is set.

    Raises:
        InvalidValue: ``timeout`` is not a positive duration, or the user's file is invalid.
        MissingFile, UnknownName: the user's file does not exist, or has an unknown key.
    """
    if timeout is not None:
        return parse_timeout(timeout)
    key = (state.epoch, state.name, recorder.current_phase(), nbytes.bit_length())
    limit = _limits.get(key, -1.0)
    if limit is None:  # the history has such calls, and advises by call site
        return _adapt_to_history(key, find_call_site())
    if limit > 0:
        return limit
    _find_earlier_fit(state)
    return _compute_limit(key)


def parse_timeout(timeout: float | str) -> float:
    """Return the user's own timeout in seconds.

    Raises:
        InvalidValue: it is not a positive, finite duration.
    """
    seconds = recorder.parse_duration(timeout, "timeout")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InvalidValue(
            "timeout",
            why=f"{timeout!r} is not a positive duration",
            next_step="use seconds, or 90s, 10m or 2h",
        )
    return seconds


def record_bandwidth(state: GroupState, nbytes: int, seconds: float) -> None:
    """Record how fast a call moved ``nbytes`` over this group's link."""
    if nbytes < MIN_MEASURED_BYTES or not seconds > 0:
        return
    kept = _bandwidths.setdefault((state.epoch, state.name), deque(maxlen=_KEPT_BANDWIDTHS))
    before = max(kept, default=0.0)
    kept.append(nbytes / seconds)
    if not 0.8 < before / max(kept) < 1.25:
        _limits.clear()


def _measured_bandwidth(epoch: int, name: str) -> float | None:
    """Return the bytes/s that a group's latest large calls reached; None without such calls."""
    return max(_bandwidths.get((epoch, name), ()), default=None)


def record_call(
    call: BoundedCall, seconds: float, outcome: timeout_history.CallOutcome, *, absent: bool = False
) -> None:
    """Record in the history a call that took over a second or timed out; ``absent``: ranks missing.

    Never raises: it is called while the call's own error is raised.
    """
    with suppress(HoldfastError):  # an invalid policy file was reported when a limit was chosen
        phase, _ = recorder.current_phase()
        context = timeout_history.CallContext(
            phase=classify_phase(phase),
            bandwidth=_measured_bandwidth(call.state.epoch, call.state.name),
            absent=absent,
            # The user chose a shorter one, which must not be extended.
            is_policy_limit=call.limit_s >= _min_limit(phase, call.nbytes),
        )
        timeout_history.record_call(call, seconds, outcome, context)


def reset() -> None:
    """Forget all measurements; read the file and the history again when next needed."""
    _limits.clear()
    _bandwidths.clear()
    _fits.clear()
    _earlier_fits.cache_clear()
    load_policy.cache_clear()
    least_limit.cache_clear()


timeout_history.listeners.append(_limits.clear)


# ---- the choice


def classify_phase(name: str) -> str:
    """Return ``evaluation`` or ``training``: the timeouts that apply in a phase of this name."""
    folded = name.casefold()
    words = load_policy().evaluation_words
    return "evaluation" if any(word.casefold() in folded for word in words) else "training"


def _compute_limit(key: _Key) -> float:
    if len(_limits) >= _MAX_LIMITS:
        _limits.clear()
    _, group, (phase, _), size = key
    if timeout_history.has_problems(group, size, classify_phase(phase)):
        _limits[key] = None
        return _adapt_to_history(key, find_call_site())
    limit = _limits[key] = _apply_policy(key)
    return limit


def _adapt_to_history(key: _Key, site: str) -> float:
    """Return the policy's limit, or a longer one if calls at this site needed it."""
    _, group, (phase, _), size = key
    advice = timeout_history.advise_call(group, size, classify_phase(phase), site)
    return max(_apply_policy(key), min(advice.least_limit_s, load_policy().ceiling))


def _apply_policy(key: _Key) -> float:
    """Return the least limit of the phase and size, or more on a slow link."""
    rules = load_policy()
    epoch, group, (phase, budget_s), size = key
    nbytes = 1 << size  # the most that a call of this power of two may move
    bandwidth = _measured_bandwidth(epoch, group)
    fit = _fits.get((epoch, group))
    expected_s = 0.0
    if bandwidth:
        expected_s = nbytes / bandwidth
    elif fit is not None:  # the slower end of the measured intervals
        expected_s = fit.latency_interval_s[1] + nbytes / fit.bandwidth_interval[0]
    link_limit_s = min(rules.bandwidth_factor * expected_s, rules.ceiling)
    return max(_min_limit(phase, nbytes), budget_s, link_limit_s)


def _find_earlier_fit(state: GroupState) -> None:
    """Find once what was measured earlier over as many ranks as the group has."""
    key = (state.epoch, state.name)
    if key in _fits:
        return
    _fits[key] = None
    if fits := _earlier_fits():
        layout, backend = known_host_layout(state), state.backend_for(state.device.type)
        hosts = len(layout) if layout else None
        _fits[key] = link_measurements.find_fit(
            fits, backend=backend, ranks=len(state.ranks), hosts=hosts
        )


@cache
def _earlier_fits() -> tuple[AlphaBetaFit, ...]:
    """Return all stored measurements; none if the disk does not answer in time."""
    return timeout_history.call_with_disk_limit(link_measurements.load_fits, ())


def _min_limit(phase: str, nbytes: int) -> float:
    rules = load_policy()
    if classify_phase(phase) == "evaluation":
        return rules.evaluation
    return rules.small if nbytes <= rules.small_bytes and not phase else rules.training


# ---- the file


@cache
def load_policy() -> TimeoutPolicy:
    """Return our policy, overridden by the user's file. Raises as :func:`read_policy_file`."""
    user_file = settings.read_path("HOLDFAST_TIMEOUTS")
    text = files(__package__).joinpath("timeouts.toml").read_text(encoding="utf-8")
    overrides = read_policy_file(user_file) if user_file is not None else {}
    return msgspec.convert({**_in_seconds(tomllib.loads(text)), **overrides}, TimeoutPolicy)


@cache
def least_limit() -> float:
    """Return a lower bound of the limits that the policy chooses, in seconds."""
    rules = load_policy()
    return min(rules.training, rules.evaluation, rules.small)


def describe_policy() -> list[tuple[str, object, str]]:
    """Return each key of the policy with its value (seconds for durations) and origin.

    Raises as :func:`read_policy_file`.
    """
    path = settings.read_path("HOLDFAST_TIMEOUTS")
    overrides = read_policy_file(path) if path is not None else {}
    text = path.read_text(encoding="utf-8") if path is not None else ""
    return [
        (key, value, f"{path}, line {_find_line(text, key)}" if key in overrides else "default")
        for key, value in msgspec.structs.asdict(load_policy()).items()
    ]


def read_policy_file(path: Path) -> dict[str, Any]:
    """Return the keys of a user's file, durations in seconds.

    Raises:
        MissingFile: it cannot be opened.
        InvalidValue: it is not TOML, or a value is invalid; names the line.
        UnknownName: it has an unknown key.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise MissingFile(
            path,
            why=os_error_reason(error),
            next_step="correct HOLDFAST_TIMEOUTS, or unset it",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidValue(
            f"HOLDFAST_TIMEOUTS: {path}", why=f"not valid TOML: {error}", next_step=_EXAMPLE
        ) from error
    fields = TimeoutPolicy.__struct_fields__
    for key, value in document.items():
        where = f"{path}, line {_find_line(text, key)}"
        if key not in fields:
            raise UnknownName(f"key in {where}:", key, fields)
        why = _find_value_error(key, value)
        if why:
            raise InvalidValue(f"{key} in {where}", why=why, next_step=_EXAMPLE)
    return _in_seconds(document)


_EXAMPLE = f'write e.g. training = "20m"; the keys are {", ".join(TimeoutPolicy.__struct_fields__)}'


def _in_seconds(document: dict[str, Any]) -> dict[str, Any]:
    return {
        key: recorder.parse_duration(value) if key in DURATIONS else value
        for key, value in document.items()
    }


def _find_value_error(key: str, value: Any) -> str:
    """Return why the key cannot have this value; empty if it can."""
    if key in DURATIONS:
        with suppress(InvalidValue):
            if isinstance(value, int | float | str) and not isinstance(value, bool):
                parse_timeout(value)
                return ""
        return f"{value!r} is not a positive duration"
    if key == "evaluation_words":
        is_valid = isinstance(value, list) and all(isinstance(word, str) and word for word in value)
        return "" if is_valid else f"{value!r} is not a list of words"
    kinds = (int,) if key == "small_bytes" else (int, float)
    if isinstance(value, kinds) and not isinstance(value, bool) and 0 <= float(value) < math.inf:
        return ""
    kind = "an integer" if key == "small_bytes" else "a number"
    return f"{value!r} is not {kind} of at least 0"


def _find_line(text: str, key: str) -> int:
    """Return the line of a key in the file; 1 if its notation is not recognized."""
    pattern = re.compile(rf"""^\s*\[?\s*["']?{re.escape(key)}["']?\s*[\].=]""")
    lines = enumerate(text.splitlines(), 1)
    return next((number for number, line in lines if pattern.match(line)), 1)
