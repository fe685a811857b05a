"""Which worker of pytest-xdist runs which file of tests, also after one of them died."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Ours for ``--dist loadfile``, xdist's own for everything else."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        """Ends after a worker's death, as by a time limit; xdist's own (3.8) waits for ever.

        That one hands out all files of the dead worker again: those that are done, too, on which nothing is reported
        any more, and no next file asked for; and the test that it died of, of which the next one dies.
        """

        def remove_node(self, node: Any) -> str | None:
            files = self.assigned_work[node]
            died_of = next((test for tests in files.values() for test, done in tests.items() if not done), None)
            left = {
                file: {test: done for test, done in tests.items() if not done and test != died_of}
                for file, tests in files.items()
            }
            self.assigned_work[node] = {}
            super().remove_node(node)
            self.workqueue.update({file: tests for file, tests in left.items() if tests})
            for each in self.nodes if died_of else ():
                self._reschedule(each)
            return died_of

        def schedule(self) -> None:
            super().schedule()
            for each in self.nodes:  # a worker begins its last test when it knows that there is no other, or which
                self._reschedule(each)

        def _reschedule(self, node: Any) -> None:
            if node in self.registered_collections:  # else it takes a dead one's place, and is not ready yet
                with suppress(OSError):  # dead already, and what it was given is handed on when that is known
                    super()._reschedule(node)

    return Files(config, log)
