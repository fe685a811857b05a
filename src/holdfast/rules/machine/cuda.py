"""Which of driver, CUDA, torch and NCCL do not fit together."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.checks import Place
from holdfast.facts.checks.cuda import Cuda
from holdfast.findings import Finding, Level, Remedy, Safety, finding
from holdfast.rules.causes import by_name

#: CUDA's major version -> the first driver that runs it (docs.nvidia.com/deploy/cuda-compatibility, table 1).
FIRST_DRIVER = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580, 65, 6)}


def judge(seen: Cuda, _place: Place) -> Iterator[Finding]:
    """First whether torch is for these GPUs at all, then versions."""
    cause = by_name("cuda-driver-mismatch")
    if seen.torch is not None:
        if seen.nvidia and seen.cuda is None:
            built = f"ROCm {seen.rocm}" if seen.rocm else "the CPU alone"
            yield finding(cause, f"torch {seen.torch} is built for {built}: it will not use the {seen.nvidia} NVIDIA "
                          "GPUs of this host", evidence=seen.facts(), remedies=_OTHER_TORCH)  # fmt: skip
        elif seen.amd and not seen.nvidia and seen.rocm is None:
            yield finding(cause, f"torch {seen.torch} is not built for ROCm: it will not use the {seen.amd} AMD GPUs "
                          "of this host", level=Level.WARNING, evidence=seen.facts(), confidence=0.8)  # fmt: skip
    yield from _driver(seen)
    yield from _nccl(seen)


_OTHER_TORCH = (
    Remedy(
        text="Install torch for the CUDA version of this driver, as pytorch.org/get-started says.",
        command="python -c 'import torch; print(torch.version.cuda)'",
        safety=Safety.AUTOMATIC,
    ),
)


def _driver(seen: Cuda) -> Iterator[Finding]:
    cause = by_name("cuda-driver-mismatch")
    if not isinstance(seen.module, str):
        return
    module = numbers(seen.module)
    first = FIRST_DRIVER.get(numbers(seen.cuda)[0]) if seen.cuda else None
    if first is not None and module < first:
        wanted = ".".join(map(str, first))
        yield finding(
            cause, f"torch is built for CUDA {seen.cuda}, which needs driver {wanted} or newer, and {seen.module} is "
            "loaded"
            + (": only the newer library of CUDA's compat package can help" if seen.forward else ""),
            level=Level.WARNING if seen.forward else Level.ERROR, evidence=seen.facts(),
        )  # fmt: skip
    if seen.library and seen.module not in seen.library:
        yield finding(
            cause, f"the kernel has driver {seen.module}, and its library is of version {', '.join(seen.library)}: "
            "every CUDA call fails until a reboot", evidence=seen.facts(), confidence=0.9,
        )  # fmt: skip


def _nccl(seen: Cuda) -> Iterator[Finding]:
    cause = by_name("nccl-version-mismatch")
    if seen.nccl is None or seen.nccl_wanted is None or seen.nccl == seen.nccl_wanted:
        return
    installed, wanted = ("{1} (CUDA {0})".format(*pair) for pair in (seen.nccl, seen.nccl_wanted))
    older = numbers(seen.nccl[1]) < numbers(seen.nccl_wanted[1]) or seen.nccl[0] != seen.nccl_wanted[0]
    yield finding(
        cause, f"torch was built with NCCL {wanted}, and {installed} is installed",
        level=Level.WARNING if older else Level.NOTE, evidence=seen.facts(), confidence=0.7,
    )  # fmt: skip


def numbers(version: str) -> tuple[int, ...]:
    """``580.65.06`` as numbers that can be compared."""
    return tuple(int(part) for part in version.split(".") if part.isascii() and part.isdigit()) or (0,)
