"""Scheduling of test files to pytest-xdist workers that survives a worker's death."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return our scheduler for ``--dist loadfile``; None selects xdist's own."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        """A scheduler that finishes after a worker's death, for example by a timeout; xdist 3.8 hangs.

        xdist reassigns all files of the dead worker, including finished tests, which are never
        reported again so that no next file is requested, and the test that killed it, which kills
        the next worker.
        """

        def remove_node(self, node: Any) -> str | None:
            files = self.assigned_work[node]
            fatal_test = next(
                (test for tests in files.values() for test, done in tests.items() if not done), None
            )
            remaining = {
                file: {
                    test: done for test, done in tests.items() if not done and test != fatal_test
                }
                for file, tests in files.items()
            }
            self.assigned_work[node] = {}
            super().remove_node(node)
            self.workqueue.update({file: tests for file, tests in remaining.items() if tests})
            for each in self.nodes if fatal_test else ():
                self._reschedule(each)
            return fatal_test

        def schedule(self) -> None:
            super().schedule()
            # A worker starts its last test only after it receives the next one or the end signal.
            for each in self.nodes:
                self._reschedule(each)

        def _reschedule(self, node: Any) -> None:
            # A worker that replaces a dead one is not registered until it is ready.
            if node in self.registered_collections:
                # OSError: already dead; its files are reassigned when that is detected.
                with suppress(OSError):
                    super()._reschedule(node)

    return Files(config, log)
