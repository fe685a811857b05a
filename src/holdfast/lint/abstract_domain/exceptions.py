"""Which handler catches which exception."""

from __future__ import annotations

import builtins
from functools import lru_cache

#: Exceptions of libraries, by last name, with the builtin one that they derive from.
_LIBRARY_BASES = {
    "OutOfMemoryError": "RuntimeError", "JSONDecodeError": "ValueError", "URLError": "OSError",
    "HTTPError": "OSError", "RequestException": "OSError", "UnpicklingError": "Exception",
}  # fmt: skip


@lru_cache(maxsize=1024)
def catches(handler_type: str, raised: str) -> bool:
    """Return True if a handler for ``handler_type`` catches the exception ``raised``."""
    if not handler_type or not raised:
        return True
    names = {part.strip(" ()").rpartition(".")[2] for part in handler_type.split(",")}
    return not names.isdisjoint(_bases(raised.rpartition(".")[2]))


def _bases(raised: str) -> set[str]:
    """Return the names of an exception and its base classes; a class of the program is derived."""
    builtin = getattr(builtins, _LIBRARY_BASES.get(raised, raised), None)
    bases = builtin.__mro__ if isinstance(builtin, type) else Exception.__mro__
    return {raised, *(base.__name__ for base in bases)}
