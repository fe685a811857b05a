"""Compiles the C++ recorder for the torch that is installed, once, and keeps it in the cache folder.

Needs g++ (or $CXX), Python's headers and the headers that every torch wheel carries; takes about half a minute. Where
one of them is missing the recorder in Python takes over, whose price docs/benchmarks.md tells.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast import settings

SOURCES = Path(__file__).parent / "native"
BUILD_LIMIT_S = 300


def fingerprint() -> str:
    """What the compiled file depends on: our sources, torch's version, Python's ABI."""
    content = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        content.update(source.read_bytes())
    return f"torch{torch.__version__}-{sysconfig.get_config_var('SOABI')}-{content.hexdigest()[:12]}"


def cached() -> Path:
    """Where the compiled recorder of this torch lies, or will lie."""
    return settings.cache_folder() / f"recorder-{fingerprint()}.so"


def compiler() -> str | None:
    """The C++ compiler: $CXX, else g++, else c++; None where there is none."""
    return next((found for name in (settings.compiler(), "g++", "c++") if name and (found := shutil.which(name))), None)


def command(cxx: str, target: Path) -> list[str]:
    """The compiler's arguments for the torch that is imported here."""
    home = Path(torch.__file__).parent
    standard = "c++20" if torch_release() >= (2, 10) else "c++17"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        cxx, "-O2", f"-std={standard}", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}",
        str(SOURCES / "recorder.cpp"), "-o", str(target),
        f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu",
    ]  # fmt: skip


def torch_release() -> tuple[int, int]:
    """Major and minor version of torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)


def ensure_built(progress: Callable[[str], None]) -> Path | None:
    """The compiled recorder, built first where needed; None where it cannot be (``progress`` is told why)."""
    target = cached()
    if target.is_file():
        return target
    cxx = compiler()
    if cxx is None:
        progress("no C++ compiler here: the recorder in Python is used, as dear as TORCH_DISTRIBUTED_DEBUG=DETAIL.")
        return None
    progress(f"compiling the recorder for torch {torch.__version__} (once, about half a minute) …")
    return _build(cxx, target, progress)


def _build(cxx: str, target: Path, progress: Callable[[str], None]) -> Path | None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            done = subprocess.run(
                command(cxx, made), capture_output=True, text=True, timeout=BUILD_LIMIT_S, check=False
            )
            if done.returncode == 0:
                made.replace(target)  # another node may build at the same time into a shared home folder
                return target
            why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-200:])
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    progress(f"the recorder could not be compiled ({why.strip()}): the recorder in Python is used.")
    return None


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - its whole purpose
