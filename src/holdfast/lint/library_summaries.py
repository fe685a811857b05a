"""What public functions of libraries do, as derived from their source: library_summaries.json.

``make summaries`` derives the file anew (:mod:`holdfast.lint.derive_summaries`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("library_summaries.json")


class CallSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function that enters a collective on each rank that calls it with the default flags.

    ``kind``: as of :class:`~holdfast.lint.abstract_domain.effects.Operation`. ``enters`` is the
    collective. ``agrees``: all ranks get the same result. ``unless``: flags with which it enters
    none.
    """

    name: str
    enters: str
    kind: str = "collective"
    agrees: bool = False
    parameters: tuple[str, ...] = ()
    unless: dict[str, bool] = msgspec.field(default_factory=dict)


class ExportedFunction(msgspec.Struct, frozen=True):
    """A function, and the modules that export it."""

    modules: tuple[str, ...]
    call: CallSummary

    @property
    def names(self) -> Iterator[str]:
        """Return the names by which it can be imported."""
        yield from (f"{module}.{self.call.name}" for module in self.modules)


class ExportedClass(msgspec.Struct, frozen=True, omit_defaults=True):
    """A class, the modules that export it, its own and inherited methods.

    ``returns_self``: methods that return the instance.
    """

    name: str
    modules: tuple[str, ...]
    methods: tuple[CallSummary, ...]
    returns_self: tuple[str, ...] = ()

    @property
    def names(self) -> Iterator[str]:
        """Return the names by which it can be imported."""
        yield from (f"{module}.{self.name}" for module in self.modules)


class LibrarySummaries(msgspec.Struct, frozen=True):
    """The summaries of all libraries, and the version of each that was analyzed."""

    versions: dict[str, str]
    functions: tuple[ExportedFunction, ...]
    classes: tuple[ExportedClass, ...]


@cache
def load_summaries() -> LibrarySummaries:
    """Return the stored summaries."""
    return msgspec.json.decode(FILE.read_bytes(), type=LibrarySummaries)
