"""Add a run to the history store while it runs, in a process of its own: the job never waits.

The agent's process imports no database library, so neither its memory nor its threads grow. An
update is postponed by :data:`DELAY_S`, so that it does not compete with workers that start, and
changes in that time cause one update.

The end of the run does not wait for the last update: each change marks the run until it was added,
and commands that read the store beside the run folders add marked runs first. A store
elsewhere may have other readers, so the end waits for it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.serve.store.location import (
    is_beside_runs,
    is_installed,
    run_marker,
    store_location,
)

DELAY_S = 5.0
#: Maximum time of an update, and of the last one at the end of the run.
UPDATE_S = 60.0
CLOSE_S = 15.0
#: The update gives up waiting for other writers before it is killed.
BUSY_S = 10.0


class BackgroundIndexer:
    """Runs ``holdfast history index FOLDER`` after changes; ``notify`` prints a warning."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._folder: Path | None = None
        self._changed, self._closed = threading.Event(), threading.Event()
        self._pending = self._marked = False
        self._error = ""
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[str] | None = None

    @property
    def processes(self) -> frozenset[int]:
        """The process of an update in progress."""
        child = self._child
        return frozenset({child.pid} if child is not None else ())

    def changed(self, folder: Path) -> None:
        """Note that the records of the run changed."""
        self._folder, self._pending = folder, True
        if self._thread is None:
            if store_location(folder.parent) is None or not is_installed():
                return
            self._thread = threading.Thread(target=self._run, name="holdfast-history", daemon=True)
            self._thread.start()
        self._marked = is_beside_runs() and _mark(folder)
        self._changed.set()

    def close(self) -> None:
        """Wait for the last update, at most CLOSE_S + UPDATE_S, unless the run is marked."""
        if self._marked:
            return
        self._closed.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            self._changed.wait()
            last = self._closed.wait(DELAY_S)
            self._changed.clear()
            if self._pending:
                self._pending = False
                self._update()

    def _update(self) -> None:
        limit_s = CLOSE_S if self._closed.is_set() else UPDATE_S
        command = ["history", "index", str(self._folder), "--busy", f"{BUSY_S:g}s"]
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *command],
                process_group=0,  # Ctrl-C is for the job
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                errors="replace",
                text=True,
            )
        except OSError as error:
            self._warn(str(error))
            return
        with self._child as child:
            try:
                errors = child.communicate(timeout=limit_s)[1]
            except subprocess.TimeoutExpired:
                child.kill()
                errors = f"no answer within {limit_s:g} s"
        self._child = None
        lines = errors.strip().splitlines() or [f"exit status {child.returncode}"]
        self._warn("" if child.returncode == 0 else lines[-1].removeprefix("holdfast: "))

    def _warn(self, error: str) -> None:
        """Print a new error once; the next success permits it again."""
        if error and error != self._error:
            self._notify(f"warning: the run was not added to the history store: {error}")
        self._error = error


def _mark(folder: Path) -> bool:
    try:
        run_marker(folder).parent.mkdir(exist_ok=True)
        run_marker(folder).touch()
    except OSError:
        return False
    return True
