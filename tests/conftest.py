"""What all tests share."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast import settings
from tests.scheduling import pytest_xdist_make_scheduler  # noqa: F401 -- a hook: pytest finds it by its name


def pytest_configure(config: pytest.Config) -> None:
    """Heed Ctrl-C, and keep away from what runs of the user's own have measured and learnt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # who starts the tests in a shell's background has it so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(config.rootpath, ".pytest_cache", "holdfast")
    _own_cache(folder)
    _own_extensions(folder / "torch_extensions", begins=not hasattr(config, "workerinput"))


def _own_extensions(folder: Path, *, begins: bool) -> None:
    """What DeepSpeed builds by torch, for tests alone: a lock that a killed process left would stop it for ever."""
    for lock in folder.glob("*/lock") if begins else ():
        lock.unlink(missing_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)


def _own_cache(folder: Path) -> None:
    """A cache folder for tests alone. What is compiled is named by its content, and taken from the user's or kept."""
    users = settings.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "links.json").unlink(missing_ok=True)  # of the tests before
    for part in users.glob("*.so"):
        with suppress(FileExistsError):
            (folder / part.name).symlink_to(part.resolve())
    os.environ["HOLDFAST_CACHE"] = str(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests come first, so that at the end no worker is left alone with one."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
