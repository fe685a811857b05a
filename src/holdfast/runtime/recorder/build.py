"""Compiles the C++ recorder for the torch that is installed.

Needs a C++ compiler, Python's headers and the headers that every torch wheel carries; takes about half a minute. Where
one of them is missing the recorder in Python takes over, whose price docs/benchmarks.md tells.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch

from holdfast import compiled

SOURCES = Path(__file__).parent / "native"


def cached() -> Path:
    """Where the compiled recorder lies, or will lie: another for other sources, another torch, another Python."""
    return compiled.place(
        "recorder", SOURCES.iterdir(), f"torch{torch.__version__}", str(sysconfig.get_config_var("SOABI"))
    )


def arguments() -> list[str]:
    """The compiler's arguments for the torch that is imported here."""
    home = Path(torch.__file__).parent
    standard = "c++20" if torch_release() >= (2, 10) else "c++17"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        f"-std={standard}", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}",
        str(SOURCES / "recorder.cpp"), f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu",
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
    if compiled.compiler() is not None:
        progress(f"compiling the recorder for torch {torch.__version__} (once, about half a minute) …")
    said: list[str] = []
    built = compiled.build(target, arguments(), said.append)
    if built is None:
        progress(f"{said[0]}: the recorder in Python is used, as dear as TORCH_DISTRIBUTED_DEBUG=DETAIL.")
    return built


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - its whole purpose
