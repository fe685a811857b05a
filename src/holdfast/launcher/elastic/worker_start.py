"""How torch starts a worker process: as a standby worker if one matches, on a pseudo-terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from holdfast.launcher.elastic.standby_workers import StandbyPool, WorkerCommand
from holdfast.launcher.terminal.connection import TerminalRelay


def is_supported() -> bool:
    """Return whether this torch lets us start the processes."""
    return hasattr(api, "get_subprocess_handler") and hasattr(SubprocessHandler, "_popen")


@contextmanager
def use_own_start(standby: StandbyPool, terminal: TerminalRelay | None) -> Iterator[None]:
    """Make torch start workers in the with-block from ``standby``, and on ``terminal``."""
    if not is_supported():
        yield
        return

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            command, local_rank = WorkerCommand(tuple(args), env), int(self.local_rank_id)
            if terminal is not None and self._stdout is not None and self._stderr is not None:
                self._stdout = terminal.connect("stdout", local_rank, env, self._stdout)
                self._stderr = terminal.connect("stderr", local_rank, env, self._stderr)
            standby.request(local_rank, command)
            process = standby.assign(local_rank, command, self._stdout, self._stderr)
            return process or super()._popen(args, env)

    original = vars(api)["get_subprocess_handler"]
    setattr(api, "get_subprocess_handler", Handler)  # noqa: B010 - mypy rejects assigning to it
    try:
        yield
    finally:
        setattr(api, "get_subprocess_handler", original)  # noqa: B010
