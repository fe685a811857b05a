"""Which format a path is of, and its reader. Each reader is a module with two functions:

``recognises(path)`` gives the format that a path is of, or None; it looks at names and first bytes alone. ``read``
gives its ``Contents``; both raise CheckpointUnreadable with one clause that says what is wrong.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format

#: In the order in which they are asked; a more exact one stands before a more general one.
READERS: tuple[ModuleType, ...] = ()


def detect(path: Path) -> Format:
    """The format of a path. Raises CheckpointUnreadable: of none that is known, or of several at once."""
    return _reader(path)[1]


def read(path: Path) -> Contents:
    """What is in the checkpoint at ``path``. Raises CheckpointUnreadable."""
    found: Contents = _reader(path)[0].read(path)
    return found


def _reader(path: Path) -> tuple[ModuleType, Format]:
    for module in READERS:
        found = module.recognises(path)
        if found is not None:
            return module, found
    raise CheckpointUnreadable(path, why="it is of no format that is known here")
