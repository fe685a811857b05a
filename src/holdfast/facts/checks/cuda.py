"""Do driver, CUDA, torch and NCCL fit together? Files are read; none of it is imported or run."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.facts import pci, proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.versions import versions
from holdfast.findings import Fact, Unknown

#: Where the driver's libraries lie; their names end in the driver's version.
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
COMPATIBLE = "/usr/local/cuda/compat"
_LIBRARY = re.compile(r"libcuda\.so\.(\d{3}\.[\d.]+)")
_NCCL_WANTED = re.compile(r"^Requires-Dist: nvidia-nccl-cu(\d+) *[(=]=? *=?([\d.]+)", re.MULTILINE)
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


class Cuda(Seen, frozen=True, kw_only=True):
    """Versions as texts, None where there is nothing of the kind.

    ``cuda`` and ``rocm`` are what torch was built for. ``module`` is the driver in the kernel, ``library`` the versions
    of its part for programs, ``forward`` whether a newer one for older drivers is installed (CUDA's compat package).
    ``nccl`` is the installed package, ``nccl_wanted`` the one that torch names; both with CUDA's major version.
    """

    nvidia: int = 0
    amd: int = 0
    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    module: str | Unknown | None = None
    library: tuple[str, ...] = ()
    forward: bool = False
    nccl: tuple[str, str] | None = None
    nccl_wanted: tuple[str, str] | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        built = f"CUDA {self.cuda}" if self.cuda else f"ROCm {self.rocm}" if self.rocm else "CPU alone"
        nccl = "{1} for CUDA {0}".format(*self.nccl) if self.nccl else "no package"
        return (
            fact("torch", f"{self.torch}, built for {built}" if self.torch else "not installed", "torch/version.py"),
            fact("GPUs on the PCI bus", f"{self.nvidia} of NVIDIA, {self.amd} of AMD", pci.DEVICES),
            fact("NVIDIA driver", self.module or "not loaded", "/proc/driver/nvidia/version"),
            fact("its library", ", ".join(self.library) or "none found", "libcuda.so"),
            fact("NCCL", nccl, "dist-info"),
        )


def look(place: Place) -> Cuda:
    """The driver of the host, and torch as this Python would import it."""
    devices = pci.devices(place.root)
    gpus = () if isinstance(devices, Unknown) else tuple(device for device in devices if device.is_gpu)
    module = _said(versions([], place.path("/proc")), "NVIDIA driver")
    loaded = None if module == "not loaded" else module
    nvidia = sum(device.vendor == pci.NVIDIA for device in gpus)
    if not gpus and loaded is None:
        return Cuda(absent="no GPU here", **_torch(place))
    return Cuda(
        nvidia=nvidia, amd=len(gpus) - nvidia, module=Unknown(f"{module}") if "unknown" in f"{module}" else loaded,
        library=_libraries(place), forward=any(place.path(COMPATIBLE).glob("libcuda.so*")), **_torch(place),
    )  # fmt: skip


def _said(facts: Sequence[Fact], name: str) -> str:
    return next((text for seen in facts if (text := seen.text).startswith(f"{name}: ")), "").partition(": ")[2]


def _torch(place: Place) -> dict[str, Any]:
    """What facts/versions.py reads of it, as fields; in a recorded tree its site-packages stand at the root."""
    path = sys.path if place.root == "/" else [str(folder) for folder in place.path("/").glob("**/site-packages")]
    facts = versions(path, place.path("/proc"))
    torch, built, nccl = (_said(facts, name) for name in ("torch", "torch is built for", "NCCL"))
    number = _NUMBERS.search(built)
    package = re.fullmatch(r"([\d.]+).*nvidia-nccl-cu(\d+)\)", nccl)
    return {
        "torch": None if torch in ("", "not installed") else torch,
        "cuda": number[0] if number and "CUDA" in built else None,
        "rocm": number[0] if number and "ROCm" in built else None,
        "nccl": (package[2], package[1]) if package else None,
        "nccl_wanted": _wanted(path),
    }


def _wanted(path: Sequence[str]) -> tuple[str, str] | None:
    """The NCCL that torch's own metadata asks for."""
    for folder in path:
        for metadata in sorted(Path(folder or ".").glob("torch-*.dist-info/METADATA")):
            content = proc.text(metadata)
            match = _NCCL_WANTED.search(content) if isinstance(content, str) else None
            return (match[1], match[2]) if match else None
    return None


def _libraries(place: Place) -> tuple[str, ...]:
    found = set()
    for folder in LIBRARIES:
        for entry in place.path(folder).glob("libcuda.so.*"):
            match = _LIBRARY.fullmatch(entry.name)
            if match:
                found.add(match[1])
    return tuple(sorted(found))
