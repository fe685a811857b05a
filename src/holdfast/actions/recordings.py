"""Where the torch of each rank takes requests for a dump of its flight recorder, and where it leaves the dump.

Both lie in the run's folder, ``flight-recorder/generation<g>-rank<r>-…``, unless the user's variables name other
places, which are used then. The variables are read by NCCL groups alone (torch 2.13), so that a job without one never
notices. A process that cannot make its pipe dies of it, in a thread where nobody can catch that: so it is tried first
whether a pipe can be made there, and no variable is set where it cannot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast import settings
from holdfast.facts.dump_requests import DumpPlace

PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
#: Under which names the user may have set the place of dumps; the first wins in torch that knows both.
DUMPS = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
#: We set the one that loses: what a script sets itself, under either name, then counts; and all versions know it.
DUMP = DUMPS[1]


class Recordings:
    """The folder for dumps of one run of this node, made when this is made, if a pipe can be made in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder.absolute()
        self._environment = environment
        self._usable = _takes_pipes(self._folder)

    def variables(self, rank: int, generation: int) -> dict[str, str]:
        """What worker ``rank`` gets in its environment: of our places those for which the user names no other."""
        if not self._usable:
            return {}
        ours = self._ours(rank, generation)
        return settings.gaps({PIPE: ours.pipe, DUMP: ours.dump}, self._environment)

    def place(self, rank: int, generation: int) -> DumpPlace | None:
        """Where the watcher asks ``rank`` and finds the answer; None where it cannot ask."""
        pipe = settings.text(PIPE, self._environment)
        dump = next((value for name in DUMPS if (value := settings.text(name, self._environment))), None)
        if not self._usable and (pipe is None or dump is None):
            return None
        ours = self._ours(rank, generation)
        return DumpPlace(_absolute(pipe or ours.pipe), _absolute(dump or ours.dump))

    def close(self) -> None:
        """Remove our pipes, and the folder where no dump lies in it. May be called more than once."""
        for pipe in self._folder.glob("*.pipe"):
            with suppress(OSError):
                pipe.unlink()
        with suppress(OSError):
            self._folder.rmdir()

    def _ours(self, rank: int, generation: int) -> DumpPlace:
        # torch appends its own number of the rank, which is another one where the first NCCL group is not the world
        beginning = f"{self._folder}/generation{generation}-rank{rank}"
        return DumpPlace(f"{beginning}-ask", f"{beginning}-dump")


def _takes_pipes(folder: Path) -> bool:
    """Make the folder and a pipe in it, and remove the pipe."""
    trial = folder / "trial.pipe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.mkfifo(trial)
        trial.unlink()
    except OSError:
        return False
    return True


def _absolute(beginning: str) -> str:
    """A beginning of names, seen from where the workers start; one that ends in a slash keeps it."""
    return beginning if beginning.startswith("/") else f"{Path.cwd()}/{beginning}"
