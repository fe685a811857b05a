"""Compiles a part written in C++ once, and keeps it in the cache folder; whoever has no compiler does without.

Every part has a slower one in Python beside it, so nothing here raises: where a part cannot be compiled, the answer is
None and the reason is told.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast import settings

BUILD_LIMIT_S = 300


def compiler() -> str | None:
    """The C++ compiler: $CXX, else g++, else c++; None where there is none."""
    return next((found for name in (settings.compiler(), "g++", "c++") if name and (found := shutil.which(name))), None)


def place(name: str, sources: Iterable[Path], *versions: str) -> Path:
    """Where the compiled part lies, or will lie: elsewhere for other sources or other ``versions`` of its hosts."""
    content = hashlib.sha256()
    for source in sorted(sources):
        content.update(source.read_bytes())
    return settings.cache_folder() / "-".join((name, *versions, f"{content.hexdigest()[:12]}.so"))


def build(target: Path, arguments: Sequence[str], progress: Callable[[str], None]) -> Path | None:
    """Compile a shared library to ``target``; None where that fails (``progress`` is told why).

    ``arguments``: those of the compiler, without the output.
    """
    cxx = compiler()
    if cxx is None:
        progress("no C++ compiler here")
        return None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            done = subprocess.run(
                [cxx, "-O2", "-fPIC", "-shared", "-fvisibility=hidden", *arguments, "-o", str(made)],
                capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                made.replace(target)  # another node may build at the same time into a shared home folder
                return target
            why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    progress(f"it could not be compiled ({why.strip()})")
    return None
