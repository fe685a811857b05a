"""Check the paths that the user names: one that cannot be read is an error, with a suggestion."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.core.errors import MissingFile
from holdfast.core.similar_paths import similar_path
from holdfast.core.text import os_error_reason


def check_named_paths(paths: Iterable[Path]) -> None:
    """Check that each path can be read.

    Raises:
      MissingFile: it does not exist or cannot be read.
    """
    for path in paths:
        try:
            path.stat()
        except FileNotFoundError:
            near = similar_path(path)
            hint = f"did you mean {near}?" if near is not None else None
            raise MissingFile(path, next_step=hint) from None
        except OSError as error:  # an inaccessible parent folder, or a link to itself
            raise MissingFile(path, why=os_error_reason(error)) from error
        if not os.access(path, os.R_OK):
            raise MissingFile(path, why="permission denied")
