"""Compiles a part in C++ against the torch that is installed.

Needs a C++ compiler, Python's headers and the headers that every torch wheel carries.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from holdfast import compiled


def cached(name: str, sources: Iterable[Path]) -> Path:
    """Where the compiled part lies, or will lie: another for other sources, another torch, another Python."""
    return compiled.place(name, sources, f"torch{torch.__version__}", str(sysconfig.get_config_var("SOABI")))


def build(target: Path, source: Path, progress: Callable[[str], None], *libraries: str) -> Path | None:
    """Compile ``source`` to ``target``; None where that fails (``progress`` is told why)."""
    return compiled.build(target, arguments(source, *libraries), progress)


def arguments(source: Path, *libraries: str) -> list[str]:
    """The compiler's arguments for the torch that is imported here, linked with more of torch's ``libraries``."""
    home = Path(torch.__file__).parent
    standard = "c++20" if torch_release() >= (2, 10) else "c++17"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        f"-std={standard}", "-w", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}",
        str(source), f"-L{home / 'lib'}", "-lc10", "-ltorch_cpu", *(f"-l{library}" for library in libraries),
    ]  # fmt: skip


def torch_release() -> tuple[int, int]:
    """Major and minor version of torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)
