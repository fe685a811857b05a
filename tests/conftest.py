"""Configuration of all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.core import settings
from tests import hypothesis_profiles
from tests.scheduling import pytest_xdist_make_scheduler  # noqa: F401 - a pytest hook
from tests.shared_compilation import compile_share

#: Programs that tests read or run; some have names of tests, such as ``*_test.py``.
collect_ignore = ["faults/lint_cases", "faults/natural"]


def pytest_configure(config: pytest.Config) -> None:
    """Restore Ctrl-C, allow cached bytecode, and isolate the tests from the user's caches and language."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # ignored in background jobs of a shell
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Otherwise each process that a test starts compiles holdfast again (0.7 s of CPU time), and
    # each test worker all tests (15 s).
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for variable in ("HOLDFAST_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):  # tests expect English
        if os.environ.get(variable, "").startswith("zh"):
            del os.environ[variable]
    hypothesis_profiles.load()
    worker = getattr(config, "workerinput", None)
    if worker:
        compile_share(config, worker["workercount"], int(worker["workerid"].removeprefix("gw")))
    folder = Path(config.rootpath, ".pytest_cache", "holdfast")
    _isolate_cache(folder)
    _isolate_extensions(folder / "torch_extensions", first=not hasattr(config, "workerinput"))


def pytest_report_header() -> str:
    """Return the header line about hypothesis."""
    return hypothesis_profiles.describe()


def _isolate_extensions(folder: Path, *, first: bool) -> None:
    """Use a separate folder for DeepSpeed's extensions; stale locks would block it."""
    for lock in folder.glob("*/lock") if first else ():
        lock.unlink(missing_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = str(folder)


def _isolate_cache(folder: Path) -> None:
    """Use a separate cache folder, with links to the user's compiled extensions."""
    user_cache = settings.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "links.json").unlink(missing_ok=True)  # from an earlier test run
    for extension in user_cache.glob("*.so"):
        with suppress(FileExistsError):
            (folder / extension.name).symlink_to(extension.resolve())
    os.environ["HOLDFAST_CACHE"] = str(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no worker ends up with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection; exclude all tests and imported modules from it later.

    Collections during the imports take 2 s in each test worker, and one in a test, by holdfast or by
    Python, about a second otherwise.
    """
    gc.disable()
    result = yield
    gc.freeze()
    gc.enable()
    _save_cpu_time()
    return result


def _save_cpu_time() -> None:
    """Set imported modules to need less CPU time in a test worker.

    Threads of torch wait for each other actively, which takes eight times as long beside other
    workers. Small logs are searched with Hyperscan, too: a fourth of the time, for about 2000 logs.
    In a command, compiling the patterns would take longer than the search; both engines find the
    same (``unit/diagnose/test_log_scan.py``).
    """
    torch, scan = map(sys.modules.get, ("torch", "holdfast.diagnose.logs.scan"))
    if torch is not None:
        torch.set_num_threads(1)
    if scan is not None:
        scan.SMALL_BYTES = -1


@pytest.fixture(autouse=True)
def _no_emergency_checkpoint() -> Generator[None]:
    """Restore the signal handlers of a training loop that ran in this process.

    Otherwise a signal that a later test sends to itself ends the process 30 s later.
    """
    yield
    emergency = sys.modules.get("holdfast.training.checkpoint.emergency")
    if emergency is not None:
        emergency.stop_listening()
