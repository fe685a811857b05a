"""The end of a job that a scheduler preempted: what was saved, and how to resume."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.trace_file import TraceNote, read_last_note


class Preemption(msgspec.Struct, frozen=True):
    """The note that a rank writes after all ranks saved: the signal's number and the exit status.

    ``step`` is the step of the checkpoint.
    """

    signal: int
    status: int
    step: int | None = None

    def __str__(self) -> str:
        """Return the last message of the job."""
        name = signal.Signals(self.signal).name if self.signal else "a signal"
        return (
            f"preempted by {name}: all ranks saved at step {self.step} and exited with status "
            f"{self.status}; start the same command again to resume there"
        )


def read_preemption(traces: Iterable[Path]) -> Preemption | None:
    """Return the preemption that one of the ranks noted in its trace file; None if there is none.

    One note is enough: a rank writes it after the checkpoint of all ranks was committed.
    """
    for path in traces:
        with suppress(msgspec.DecodeError, ValueError):
            if note := read_last_note(path, TraceNote.PREEMPTED):
                return msgspec.json.decode(note, type=Preemption)
    return None
