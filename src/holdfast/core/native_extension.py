"""Compile C++ extensions once and cache them.

Every extension has a slower Python fallback, so nothing here raises: if compilation fails, the
result is None and the reason is reported.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core import settings

#: In the background, compiling takes many times the half minute that it takes on an idle core.
BUILD_LIMIT_S = 900
#: Time that a build waits for another process that builds the same extension.
LOCK_TIMEOUT_S = 300.0


def find_compiler() -> str | None:
    """Return the C++ compiler: $CXX, else g++, else c++; None if there is none."""
    return next(
        (
            path
            for name in (settings.compiler_command(), "g++", "c++")
            if name and (path := shutil.which(name))
        ),
        None,
    )


def source_hash(sources: Iterable[Path]) -> str:
    """Return a short hash of the content of ``sources``."""
    import hashlib  # noqa: PLC0415 - OpenSSL takes 4 MiB, and most commands hash nothing

    content = hashlib.sha256()
    for source in sorted(sources):
        content.update(source.read_bytes())
    return content.hexdigest()[:12]


def extension_path(name: str, sources: Iterable[Path], *versions: str) -> Path:
    """Return the path of the compiled extension; it depends on the sources and on ``versions``."""
    return settings.cache_folder() / "-".join((name, *versions, f"{source_hash(sources)}.so"))


def build_extension(
    target: Path, arguments: Sequence[str], progress: Callable[[str], None]
) -> Path | None:
    """Compile a shared library to ``target``.

    Return None on failure and report why to ``progress``.

    ``arguments`` are the compiler's, without the output.
    """
    compiler = find_compiler()
    if compiler is None:
        progress("no C++ compiler found")
        return None
    options = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            library = Path(folder) / target.name
            process = subprocess.run(
                [compiler, *options, *arguments, "-o", str(library)],
                capture_output=True,
                text=True,
                timeout=BUILD_LIMIT_S,
                check=False,
            )
            if process.returncode == 0:
                # Atomic: another node may build into a shared home folder at the same time.
                library.replace(target)
                return target
            why = next(
                (line for line in process.stderr.splitlines() if "error" in line),
                process.stderr[-200:],
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    progress(f"compilation failed ({why.strip()})")
    return None


@contextmanager
def build_folder(target: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[Path]:
    """Provide a temporary folder beside ``target``, to one process at a time.

    After the timeout, or on a filesystem without locks, processes build at the same time. Removes
    the folders of builds that were killed.

    Raises:
        OSError: the cache folder is not writable.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{target.stem}.build-"
    with target.with_suffix(".lock").open("w") as file:
        if _lock(file.fileno(), timeout_s):
            for folder in target.parent.glob(f"{prefix}*"):
                shutil.rmtree(folder, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as own:
            yield Path(own)


def _lock(descriptor: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        except OSError:  # the filesystem has no locks
            return False
        else:
            return True


def is_being_built(target: Path) -> bool:
    """Return whether a process builds ``target`` now."""
    try:
        with target.with_suffix(".lock").open() as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # never built, or the filesystem has no locks
        return False
    return False


def is_writable(folder: Path) -> bool:
    """Return whether files can be created in ``folder``, which is created if needed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def start_in_background(module: str) -> None:
    """Start ``python -m module`` detached: it survives this process and is never its child."""
    shell = ("/bin/sh", "-c", '"$@" &', "sh")
    subprocess.run(
        [*shell, sys.executable, "-P", "-m", module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        check=False,
    )


def yield_to_jobs() -> None:
    """Lower this process's CPU priority, and make it the first to be killed if memory runs out."""
    os.nice(19)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
