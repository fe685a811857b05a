"""Compile C++ extensions once and cache them.

Every extension has a slower Python fallback, so nothing here raises: if compilation fails, the
result is None and the reason is reported.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.core import settings

BUILD_LIMIT_S = 300


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


def extension_path(name: str, sources: Iterable[Path], *versions: str) -> Path:
    """Return the path of the compiled extension; it depends on the sources and on ``versions``."""
    content = hashlib.sha256()
    for source in sorted(sources):
        content.update(source.read_bytes())
    return settings.cache_folder() / "-".join((name, *versions, f"{content.hexdigest()[:12]}.so"))


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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            library = Path(folder) / target.name
            process = subprocess.run(
                [
                    compiler,
                    "-O2",
                    "-fPIC",
                    "-shared",
                    "-fvisibility=hidden",
                    *arguments,
                    "-o",
                    str(library),
                ],
                capture_output=True,
                text=True,
                timeout=BUILD_LIMIT_S,
                check=False,
            )
            if process.returncode == 0:
                library.replace(
                    target
                )  # atomic: another node may build into a shared home folder at the same time
                return target
            why = next(
                (line for line in process.stderr.splitlines() if "error" in line),
                process.stderr[-200:],
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    progress(f"compilation failed ({why.strip()})")
    return None
