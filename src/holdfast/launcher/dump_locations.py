"""Where torch's flight recorder of each rank accepts dump requests, and where it writes dumps.

Both are in the run folder, ``flight-recorder/generation<g>-rank<r>-…``, unless the user's
variables name other paths. Only NCCL groups read the variables (torch 2.13). A process that cannot
create its pipe dies in a thread whose exception nothing catches; so the variables are set only
where creating a pipe succeeded once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.core import settings
from holdfast.watcher.agent_messages import DumpLocation

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
#: Variables for the path of dumps; in a torch that reads both, the first takes precedence.
_DUMP_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: The one we set: all versions read it, and a script's own setting of either one takes effect.
_DUMP = _DUMP_VARIABLES[1]


class DumpLocations:
    """Paths of one run on this node. Creates ``folder`` if pipes can be created in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder.absolute()
        self._environment = environment
        self._usable = _can_create_pipes(self._folder)

    def variables(self, rank: int, generation: int) -> dict[str, str]:
        """Return the environment variables of worker ``rank`` that the user has not set."""
        if not self._usable:
            return {}
        default = self._default(rank, generation)
        return settings.missing_defaults(
            {PIPE: default.pipe, _DUMP: default.dump}, self._environment
        )

    def location(self, rank: int, generation: int) -> DumpLocation | None:
        """Return where the watcher requests and finds the dump of ``rank``; None: not possible."""
        pipe = settings.read_text(PIPE, self._environment)
        values = (settings.read_text(name, self._environment) for name in _DUMP_VARIABLES)
        dump = next(filter(None, values), None)
        if not self._usable and (pipe is None or dump is None):
            return None
        default = self._default(rank, generation)
        return DumpLocation(_absolute(pipe or default.pipe), _absolute(dump or default.dump))

    def close(self) -> None:
        """Remove the pipes, and the folder if it contains no dump. Idempotent."""
        for pipe in self._folder.glob("*.pipe"):
            with suppress(OSError):
                pipe.unlink()
        with suppress(OSError):
            self._folder.rmdir()

    def _default(self, rank: int, generation: int) -> DumpLocation:
        # torch appends its own rank, which differs if the first NCCL group is not the world
        prefix = f"{self._folder}/generation{generation}-rank{rank}"
        return DumpLocation(f"{prefix}-ask", f"{prefix}-dump")


def _can_create_pipes(folder: Path) -> bool:
    """Create the folder and a pipe in it, and remove the pipe."""
    trial = folder / "trial.pipe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(trial)
        trial.unlink()
    except OSError:
        return False
    return True


def _absolute(prefix: str) -> str:
    """Return a path prefix as absolute; keeps a trailing slash."""
    return prefix if prefix.startswith("/") else f"{Path.cwd()}/{prefix}"
