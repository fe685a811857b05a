"""The recorder: everything that runs inside a training process to write the rank's trace file.

Contains the two public calls (:func:`step`, :func:`phase`), the backends that record collectives
(C++ in ``native/``, Python in ``python_kernels.py``), and their hooks into torch. It records only;
analysis is elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast.core import settings, trace_file
from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.trace_file import TraceNote, TraceWriter

if TYPE_CHECKING:
    from holdfast.recorder.backends import RecorderBackend

_trace: TraceWriter | None = None
_backend: RecorderBackend | None = None
#: Per thread: a background evaluation is not training's phase.
_current_phase: ContextVar[tuple[str, float]] = ContextVar("phase", default=("", 0.0))
_DEFAULT_BUDGET_S = 600.0

#: Called with the number of each step that begins (used by fault injection).
step_listeners: list[Callable[[int], None]] = []
#: Called with the name of each phase that is entered.
phase_listeners: list[Callable[[str], None]] = []

#: Called with the exception that ends the script, before the trace records the exit; by name.
raised_listeners: dict[str, Callable[[BaseException], None]] = {}


#: Called when the trace was renewed for another generation of this process.
renewal_listeners: list[Callable[[], None]] = []


def renew_process_trace(*, rank: int, world_size: int, local_rank: int, generation: int) -> None:
    """Continue as a rank of another generation, with an empty trace. Raises ShmUnavailable."""
    if _trace is not None:
        _trace.renew(rank=rank, world_size=world_size, local_rank=local_rank, generation=generation)
        for listener in renewal_listeners:
            listener()


def use_trace(trace: TraceWriter | None) -> None:
    """Set the trace that :func:`step` and :func:`phase` write to; None disables them."""
    global _trace  # noqa: PLW0603 - one trace per process
    _trace = trace


def use_backend(backend: RecorderBackend) -> None:
    """Set the backend that :func:`record_store_call` uses."""
    global _backend  # noqa: PLW0603 - as above
    _backend = backend


def step(number: int) -> None:
    """Record that training step ``number`` begins. Optional: otherwise steps are inferred.

    No effect without a trace.
    """
    record_step(number)


def record_step(number: int | None = None) -> None:
    """Record a step (None: the previous plus one) and notify the listeners."""
    if _trace is not None:
        reached = _trace.step(number)
        for listener in step_listeners:
            listener(reached)


def record_note(kind: str, value: Any) -> None:
    """Record ``value`` as JSON. No effect without a trace."""
    if _trace is not None:
        _trace.note_json(kind, value)


def record_warning(about: str, text: str) -> None:
    """Record a warning to be sent by `--alert` while the job continues."""
    record_note(TraceNote.WARNED, {"about": about, "text": text})


def record_saved_step(step: int, path: str, *, loaded: bool = False) -> None:
    """Record that a checkpoint was committed, or ``loaded``. No effect without a trace."""
    if _trace is not None:
        _trace.note_json(
            TraceNote.SAVED, {"step": step, "path": path, "time": time.time(), "loaded": loaded}
        )


@suggest_keywords
@contextmanager
def phase(name: str, budget: str | float | None = None) -> Iterator[None]:
    """Mark a with-block that is not a training step and may take up to ``budget``.

    The budget is ``"90s"``, ``"10m"``, ``"2h"`` or a number of seconds, 10 minutes by default.
    Until it is used up, a rank that is silent inside the phase does not count as hung. Collectives
    of ``holdfast.comm`` without a timeout get at least the budget, if it is set here.

    Raises:
        InvalidValue: the budget is not a duration.
    """
    with extend_phase(name, budget):
        for listener in phase_listeners:
            listener(name)
        yield


@contextmanager
def extend_phase(name: str, budget: str | float | None) -> Iterator[None]:
    """Extend the budget of the current phase, without notifying listeners."""
    inner = name, 0.0 if budget is None else parse_duration(budget)
    outer = _current_phase.get()
    _set_phase(inner)
    try:
        yield
    finally:
        _set_phase(outer)


@contextmanager
def record_store_call(name: str) -> Iterator[None]:
    """Record, like a collective, that this rank waits for the others in the job's store.

    ``name`` is one of ``trace_file.OPERATIONS``; every rank must make equally many of these calls.
    A missing rank is then named as for a collective. No effect without a recorder.
    """
    backend = _backend
    number = backend.begin(name, trace_file.OPERATIONS.index(name)) if backend is not None else 0
    failed = True
    try:
        yield
        failed = False
    finally:
        if backend is not None:
            backend.finish(number, failed=failed)


def _set_phase(state: tuple[str, float]) -> None:
    _current_phase.set(state)
    if _trace is not None:
        name, budget_s = state
        _trace.phase(name, budget_s or (_DEFAULT_BUDGET_S if name else 0.0))


#: The phase of this thread and its budget in seconds, also without a trace; ``("", 0.0)`` outside.
#: The budget is 0 if none was set.
current_phase: Callable[[], tuple[str, float]] = _current_phase.get


def parse_duration(text: str | float, subject: str = "budget") -> float:
    """Parse a duration in seconds: a number, or a number with a unit ms, s, m or h.

    Raises:
        InvalidValue: anything else, or a negative duration; names the ``subject``.
    """
    if isinstance(text, int | float):
        return float(text)
    found = settings.parse_time(text)
    if found is None:
        raise InvalidValue(
            subject,
            why=f"{text!r} is not a duration",
            next_step="use 90s, 10m, 2h or a number of seconds",
        )
    return found
