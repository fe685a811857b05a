"""Check the paths that the user names: one that cannot be read is an error, with a suggestion."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.core.errors import MissingFile
from holdfast.core.text import os_error_reason

_MIN_SIMILARITY = 0.6


def check_named_paths(paths: Iterable[Path]) -> None:
    """Check that each path can be read.

    Raises:
      MissingFile: it does not exist or cannot be read.
    """
    for path in paths:
        try:
            path.stat()
        except FileNotFoundError:
            near = _similar_path(path)
            hint = f"did you mean {near}?" if near is not None else None
            raise MissingFile(path, next_step=hint) from None
        except OSError as error:  # an inaccessible parent folder, or a link to itself
            raise MissingFile(path, why=os_error_reason(error)) from error
        if not os.access(path, os.R_OK):
            raise MissingFile(path, why="permission denied")


def _similar_path(path: Path) -> Path | None:
    """Return the path with its first missing part replaced by the most similar existing name."""
    parts = (path, *path.parents)
    missing = next((part for part, parent in itertools.pairwise(parts) if parent.is_dir()), None)
    if missing is None:
        return None
    try:
        names = [entry.name for entry in missing.parent.iterdir()]
    except OSError:
        return None
    names = [name for name in names if name.endswith((".py", ".ipynb")) or "." not in name]
    matches = difflib.get_close_matches(missing.name, names, n=1, cutoff=_MIN_SIMILARITY)
    return missing.with_name(matches[0]) / path.relative_to(missing) if matches else None
