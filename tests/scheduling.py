"""Scheduling of test files to pytest-xdist workers that survives a worker's death."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return our scheduler for ``--dist loadfile``, xdist's own otherwise."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        """Finishes after a worker's death, for example by a timeout; xdist's own (3.8) hangs.

        xdist reassigns all files of the dead worker, including finished tests, which are never
        reported again so that no next file is requested, and the test that killed it, which kills
        the next worker.
        """

        def remove_node(self, node: Any) -> str | None:
            files = self.assigned_work[node]
            died_of = next(
                (test for tests in files.values() for test, done in tests.items() if not done), None
            )
            remaining = {
                file: {test: done for test, done in tests.items() if not done and test != died_of}
                for file, tests in files.items()
            }
            self.assigned_work[node] = {}
            super().remove_node(node)
            self.workqueue.update({file: tests for file, tests in remaining.items() if tests})
            for each in self.nodes if died_of else ():
                self._reschedule(each)
            return died_of

        def schedule(self) -> None:
            super().schedule()
            for each in self.nodes:  # a worker starts its last test only when it knows the next one, or that there is none
                self._reschedule(each)

        def _reschedule(self, node: Any) -> None:
            if (
                node in self.registered_collections
            ):  # otherwise it replaces a dead worker and is not ready yet
                with suppress(
                    OSError
                ):  # already dead; its files are reassigned when that is detected
                    super()._reschedule(node)

    return Files(config, log)
