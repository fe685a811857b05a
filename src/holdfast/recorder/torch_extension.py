"""Compile C++ extensions against the installed torch.

Needs a C++ compiler, Python's headers and the headers included in every torch wheel.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from holdfast.core import native_extension


def cached_extension(name: str, sources: Iterable[Path]) -> Path:
    """Return the extension's path; it depends on sources, torch and Python version."""
    return native_extension.extension_path(
        name, sources, f"torch{torch.__version__}", str(sysconfig.get_config_var("SOABI"))
    )


def build_torch_extension(
    target: Path, source: Path, progress: Callable[[str], None], *libraries: str
) -> Path | None:
    """Compile ``source`` to ``target``; on failure report to ``progress`` and return None."""
    return native_extension.build_extension(
        target, compiler_arguments(source, *libraries), progress
    )


def compiler_arguments(source: Path, *libraries: str) -> list[str]:
    """Return the compiler arguments for the imported torch, linked with ``libraries``."""
    home = Path(torch.__file__).parent
    standard = "c++20" if torch_release() >= (2, 10) else "c++17"
    abi = int(torch.compiled_with_cxx11_abi())
    return [
        f"-std={standard}",
        "-w",
        f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-I{home / 'include'}",
        f"-I{home / 'include/torch/csrc/api/include'}",
        f"-I{sysconfig.get_paths()['include']}",
        str(source),
        f"-L{home / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        *(f"-l{library}" for library in libraries),
    ]


def torch_release() -> tuple[int, int]:
    """Return torch's major and minor version."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int("".join(digit for digit in minor if digit.isdigit()) or 0)
