"""Suggest an existing path for one that does not exist."""

from __future__ import annotations

import difflib
import itertools
from pathlib import Path


def similar_path(path: Path) -> Path | None:
    """Return the path with its first missing part replaced by the most similar existing name."""
    parts = (path, *path.parents)
    missing = next((part for part, parent in itertools.pairwise(parts) if parent.is_dir()), None)
    if missing is None:
        return None
    try:
        names = [entry.name for entry in missing.parent.iterdir()]
    except OSError:
        return None
    if missing.suffix:
        names = [name for name in names if Path(name).suffix in {"", missing.suffix}]
    matches = difflib.get_close_matches(missing.name, names, n=1, cutoff=0.6)
    return missing.with_name(matches[0]) / path.relative_to(missing) if matches else None
