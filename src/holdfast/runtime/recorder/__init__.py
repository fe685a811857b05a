"""The recorder: everything that runs inside a training process to leave a trace of it in the rank's box.

May stand here: the two calls a script may make (:func:`step`, :func:`phase`), the pens that write collectives (C++ in
``native/``, Python in ``operators.py``), and what hooks them into torch. Nothing here judges.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from holdfast import blackbox
from holdfast.blackbox import BoxWriter, Note
from holdfast.errors import BadValue

if TYPE_CHECKING:
    from holdfast.runtime.recorder.pens import Pen

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "ms": 0.001}

_box: BoxWriter | None = None
_pen: Pen | None = None
#: Of each thread its own: an evaluation on the side is not training's phase.
_phase: ContextVar[tuple[str, float]] = ContextVar("phase", default=("", 0.0))

#: Called with the number of each step that begins (fault injection listens here).
step_listeners: list[Callable[[int], None]] = []
#: Called with the name of each phase that is entered.
phase_listeners: list[Callable[[str], None]] = []

#: Called with the exception that ends the script, before the box says how it ended; one for each name.
raised_listeners: dict[str, Callable[[BaseException], None]] = {}


#: Called when the box has begun anew for another generation of this process.
renewals: list[Callable[[], None]] = []


def renew(*, rank: int, world_size: int, local_rank: int, generation: int) -> None:
    """Go on as a rank of another generation, with an empty box. Raises ShmUnavailable."""
    if _box is not None:
        _box.renew(rank=rank, world_size=world_size, local_rank=local_rank, generation=generation)
        for each in renewals:
            each()


def use(box: BoxWriter | None) -> None:
    """Make ``box`` the one that :func:`step` and :func:`phase` write to; None makes them do nothing."""
    global _box  # noqa: PLW0603 - one process, one box
    _box = box


def use_pen(pen: Pen) -> None:
    """Make ``pen`` the one that :func:`store_call` writes with."""
    global _pen  # noqa: PLW0603 - as above
    _pen = pen


def step(number: int) -> None:
    """Say that training step ``number`` begins. Optional: without it steps are inferred. Does nothing without a box."""
    stepped(number)


def stepped(number: int | None = None) -> None:
    """Note a step in the box (None: one more than before) and tell those who listen."""
    if _box is not None:
        reached = _box.step(number)
        for listener in step_listeners:
            listener(reached)


def note_json(kind: str, value: Any) -> None:
    """Note ``value`` as JSON in the box. Does nothing without a box."""
    if _box is not None:
        _box.note_json(kind, value)


def warn(about: str, text: str) -> None:
    """Note what people should be told of while the job goes on (`--alert`). Does nothing without a box."""
    note_json(Note.WARNED, {"about": about, "text": text})


def saved(step: int, path: str, *, loaded: bool = False) -> None:
    """Note in the box that a checkpoint was declared whole, or ``loaded``. Does nothing without a box."""
    if _box is not None:
        _box.note_json(Note.SAVED, {"step": step, "path": path, "time": time.time(), "loaded": loaded})


@contextmanager
def phase(name: str, budget: str | float = "10m") -> Iterator[None]:
    """Say that what follows is not a training step and may take up to ``budget``.

    The budget is ``"90s"``, ``"10m"``, ``"2h"`` or a number of seconds. Until it is spent, a rank that is silent inside
    the phase is not taken for a hang.

    Raises:
        BadValue: the budget cannot be read as a time.
    """
    with patience(name, budget):
        for listener in phase_listeners:
            listener(name)
        yield


@contextmanager
def patience(name: str, budget: str | float) -> Iterator[None]:
    """A :func:`phase` of which no listener hears: more time for the one that began before."""
    inner, outer = (name, seconds(budget)), _phase.get()
    _enter(inner)
    try:
        yield
    finally:
        _enter(outer)


@contextmanager
def store_call(name: str) -> Iterator[None]:
    """Record, as a collective, that this rank is where all ranks wait for each other in the job's store.

    ``name`` is one of ``blackbox.OPERATIONS``; every rank has to make as many of these calls as the others. Who does
    not come is then named like one that is missing in a collective. Does nothing without a recorder.
    """
    pen = _pen
    number = pen.begin(name, blackbox.OPERATIONS.index(name)) if pen is not None else 0
    failed = True
    try:
        yield
        failed = False
    finally:
        if pen is not None:
            pen.finish(number, failed=failed)


def _enter(now: tuple[str, float]) -> None:
    _phase.set(now)
    if _box is not None:
        _box.phase(*now)


#: The phase that this thread is in and its budget in seconds, also where no box exists; ``("", 0.0)`` outside of any.
current_phase: Callable[[], tuple[str, float]] = _phase.get


def seconds(text: str | float) -> float:
    """A time in seconds: a number, or a number with one of the units ms, s, m, h.

    Raises:
        BadValue: anything else, or a negative time.
    """
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|)\s*", text)
    if match is None:
        raise BadValue(
            "budget", why=f"{text!r} is not a time", next_step="write it as 90s, 10m, 2h or a number of seconds"
        )
    return float(match[1]) * _UNITS[match[2]]
