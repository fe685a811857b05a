"""Versions of what a training job stands on, without importing any of it: files are read, nothing is run.

The folders on ``sys.path`` are listed once; importlib.metadata would cost more than all of this together.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import holdfast
from holdfast.facts import proc
from holdfast.facts.host import seen_here
from holdfast.facts.proc import PROC
from holdfast.findings import Fact, Unknown

#: Packages whose versions matter to a distributed job, by the names of their folders.
_PACKAGES = (
    "numpy",
    "triton",
    "deepspeed",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "megatron_core",
)
_INSTALLED = re.compile(r"(?P<name>[\w.]+?)-(?P<version>[^-]+?)(-[^/]*)?\.(dist|egg)-info")
_DRIVER = re.compile(r"\s(\d{3,4}\.\d+(?:\.\d+)?)\s")
_VARIABLE = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*['\"]([^'\"\n]+)['\"]", re.MULTILINE)


def versions(path: Sequence[str] | None = None, proc_root: Path = PROC) -> tuple[Fact, ...]:
    """Versions of Python, holdfast, torch and what it was built for, NCCL, the driver, the kernel, and libraries.

    ``path`` is where packages are looked for, ``sys.path`` by default.
    """
    folders = [Path(folder) for folder in (sys.path if path is None else path) if folder]
    found = _installed(folders)
    system = os.uname()
    return (
        seen_here("Python", f"{platform.python_version()} ({platform.python_implementation()})", sys.executable),
        seen_here("holdfast", holdfast.__version__, str(Path(holdfast.__file__).parent)),
        *_torch(folders, found),
        _nccl(found),
        _driver(proc_root),
        seen_here("kernel", f"{system.sysname} {system.release} {system.machine}", "uname"),
        seen_here("C library", _c_library(), "confstr"),
        *_others(found),
    )


def nccl_and_torch(path: Sequence[str] | None = None) -> tuple[str, str]:
    """The versions of NCCL and torch that are installed as packages, "" for each that is not; nothing is imported."""
    found = _installed(Path(folder) for folder in (sys.path if path is None else path) if folder)
    packages = sorted(name for name in found if name.startswith("nvidia_nccl_cu"))
    return found[packages[-1]][0] if packages else "", found["torch"][0] if "torch" in found else ""


def installed(folders: Iterable[Path]) -> dict[str, list[tuple[str, str]]]:
    """Package -> versions and what tells them, by the names of what installers leave; the first on the path first."""
    found: dict[str, list[tuple[str, str]]] = {}
    for folder in folders:
        try:
            names = [entry.name for entry in os.scandir(folder)]
        except OSError:
            continue
        for name in names:
            match = _INSTALLED.fullmatch(name)
            if match:
                key = match["name"].lower().replace(".", "_")
                found.setdefault(key, []).append((match["version"], f"{folder}/{name}"))
    return found


def _installed(folders: Iterable[Path]) -> dict[str, tuple[str, str]]:
    return {name: versions[0] for name, versions in installed(folders).items()}


def _torch(folders: Iterable[Path], found: dict[str, tuple[str, str]]) -> Iterator[Fact]:
    """The file in torch says more than its folder's name: what it was built for, and from which commit."""
    file = next((file for folder in folders if (file := folder / "torch/version.py").is_file()), None)
    content = proc.text(file) if file is not None else Unknown("")
    if isinstance(content, Unknown):
        version, origin = found.get("torch", ("not installed", "sys.path"))
        yield seen_here("torch", version, origin)
        return
    values = dict(_VARIABLE.findall(content))
    version = values.get("__version__") or found.get("torch", ("of unknown version", ""))[0]
    yield seen_here("torch", version, str(file))
    built = [
        f"{name} {values[key]}" for key, name in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")) if key in values
    ]
    yield seen_here("torch is built for", ", ".join(built) or "CPU alone", str(file))
    if "git_version" in values:
        yield seen_here("torch commit", values["git_version"], str(file))


def _nccl(found: dict[str, tuple[str, str]]) -> Fact:
    packages = sorted(name for name in found if name.startswith("nvidia_nccl_cu"))
    if not packages:
        return seen_here("NCCL", "not installed as a package (torch may bring its own)", "sys.path")
    version, origin = found[packages[-1]]
    return seen_here("NCCL", f"{version} ({packages[-1].replace('_', '-')})", origin)


def _driver(proc_root: Path) -> Fact:
    file = proc_root / "driver/nvidia/version"
    content = proc.text(file)
    if isinstance(content, proc.Gone):
        return seen_here("NVIDIA driver", "not loaded", str(file))
    if isinstance(content, Unknown):
        return seen_here("NVIDIA driver", content, str(file))
    match = _DRIVER.search(content.partition("\n")[0] + " ")
    return seen_here("NVIDIA driver", match[1] if match else Unknown(f"{content[:80]!r}"), str(file))


def _c_library() -> str | Unknown:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or Unknown("it gives no version")
    except (ValueError, OSError):
        return Unknown("it is not glibc")


def _others(found: dict[str, tuple[str, str]]) -> Iterator[Fact]:
    for name in _PACKAGES:
        if name in found:
            version, origin = found[name]
            yield seen_here(name.replace("_", "-"), version, origin)
