"""The results file of `holdfast chaos run`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core.atomic_files import write_atomic
from holdfast.core.documents import decode_document, read_bounded
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.text import os_error_reason

SCHEMA = "holdfast/chaos/1"
MAX_BYTES = 16 << 20
#: Fields whose names in the file differ.
_FIELD_NAMES = {"violations": "wrong", "repeated_steps": "redone", "undisturbed_s": "peace_s"}


class ScenarioOutcome(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_FIELD_NAMES
):
    """The outcome of one scenario.

    ``violations`` is empty if the job passed; ``skipped`` is why it was not run. ``causes`` are
    those of its verdicts, ``repeated_steps`` the number of repeated steps, ``took_s`` the job's
    duration, ``undisturbed_s`` that of the undisturbed run. ``at`` is its end in Unix seconds.
    """

    name: str
    fault: str
    moment: str
    mode: str
    ranks: int
    hosts: int = 1
    causes: tuple[str, ...] = ()
    repeated_steps: int = 0
    took_s: float = 0.0
    undisturbed_s: float = 0.0
    violations: tuple[str, ...] = ()
    skipped: str = ""
    at: float = 0.0

    @property
    def passed(self) -> bool:
        """Return whether the scenario ran and no expectation was violated."""
        return not self.violations and not self.skipped


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All outcomes on one machine; ``at`` is the time of the newest in Unix seconds."""

    schema: str = SCHEMA
    at: float = 0.0
    machine: Mapping[str, str] = {}
    outcomes: tuple[ScenarioOutcome, ...] = ()

    def merged_with(
        self, newer: Iterable[ScenarioOutcome], at: float, machine: Mapping[str, str]
    ) -> Results:
        """Return these results with newer outcomes, which replace those of the same name."""
        both = {outcome.name: outcome for outcome in (*self.outcomes, *newer)}
        return replace(self, at=at, machine=machine, outcomes=tuple(both.values()))


def read_outcomes(path: Path) -> Results:
    """Read a results file; empty if it does not exist.

    Raises:
        InvalidValue: it was not written by holdfast.
        MissingFile: it cannot be read.
    """

    def invalid(problem: str) -> InvalidValue:
        step = "specify another file"
        return InvalidValue(f"the results file {path}", why=f"it {problem}", next_step=step)

    try:
        data = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return Results()
    except OSError as error:
        raise MissingFile(path, why=os_error_reason(error)) from error
    return decode_document(data, Results, schema=SCHEMA, max_bytes=MAX_BYTES, error=invalid)


def write(path: Path, results: Results) -> None:
    """Write the results atomically. Raises MissingFile."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def add_outcome(path: Path, outcome: ScenarioOutcome, machine: Mapping[str, str]) -> None:
    """Add one outcome to a results file; safe with concurrent writers.

    Raises:
        InvalidValue, MissingFile: as :func:`read_outcomes`, or the file cannot be written.
    """
    with _locked_folder(path.parent):
        write(path, read_outcomes(path).merged_with([outcome], outcome.at, machine))


@contextmanager
def _locked_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on the folder."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MissingFile(folder, why=os_error_reason(error)) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
