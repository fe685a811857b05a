"""Scheduling of test files to pytest-xdist workers: it survives a worker's death and keeps the CPU busy."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling


class IndexedTests(list[str]):
    """The tests that a worker collected; xdist asks for the position of each one."""

    def __init__(self, tests: Sequence[str]) -> None:
        super().__init__(tests)
        self._positions = {test: position for position, test in enumerate(tests)}

    def index(self, test: str, *_: Any) -> int:
        return self._positions[test]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return our scheduler for ``--dist loadfile``; None selects xdist's own."""
    return None if config.getoption("dist") != "loadfile" else _scheduler_class()(config, log)


def _scheduler_class() -> type[LoadFileScheduling]:
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        """A scheduler that finishes after a worker's death, for example by a timeout; xdist 3.8 hangs.

        xdist reassigns all files of the dead worker, including finished tests, which are never
        reported again so that no next file is requested, and the test that killed it, which kills
        the next worker.

        The first worker takes files from the end. Files with slow tests come first (conftest.py), and
        those mostly wait for processes, so that without it the CPU is idle at first and short at last.
        """

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            super().add_node_collection(node, IndexedTests(collection))

        def _assign_work_unit(self, node: Any) -> None:
            if node is self.nodes[0]:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def remove_node(self, node: Any) -> str | None:
            files = self.assigned_work[node]
            fatal_test, remaining = _split_unfinished(files)
            self.assigned_work[node] = {}
            super().remove_node(node)
            self.workqueue.update(remaining)
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

    return Files


def _split_unfinished(
    files: dict[str, dict[str, bool]],
) -> tuple[str | None, dict[str, dict[str, bool]]]:
    """Return the first unfinished test, and the other unfinished ones by file."""
    first = next(
        (test for tests in files.values() for test, done in tests.items() if not done), None
    )
    rest = {
        file: {test: False for test, done in tests.items() if not done and test != first}
        for file, tests in files.items()
    }
    return first, {file: tests for file, tests in rest.items() if tests}
