"""ENV001 nccl-version-mismatch."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

NCCL_VERSION_MISMATCH = Cause(
    code="ENV001",
    name="nccl-version-mismatch",
    summary="The loaded NCCL library is not the one the program was built for, or ranks load "
    "different ones.",
    what_happens="torch is built against one NCCL version, but the dynamic loader takes the first "
    "libnccl.so.2 it finds: in LD_PRELOAD, in LD_LIBRARY_PATH, in another pip package, or in the "
    "system. A library that is too old lacks symbols, so `import torch` fails. Libraries that "
    "differ between ranks are rejected when the communicator is created, or make its setup hang.",
    shows_before="More than one libnccl.so.2 on the host, LD_LIBRARY_PATH or LD_PRELOAD naming "
    "one of them, a nvidia-nccl-cu* package of another version than torch's metadata pins, or "
    "hosts with different images.",
    shows_during="/proc/<pid>/maps of each rank shows the library file that is loaded; with "
    "NCCL_DEBUG=VERSION each process prints the version. In a hang all ranks are in the first "
    "collective and none is behind.",
    shows_after="`undefined symbol: nccl...` at import, the same on all ranks that share the "
    "image, or an NCCL warning about mismatched versions of two ranks with `ncclInvalidUsage`. "
    "torchrun blames the rank that it reaped first.",
    known_misses="Two builds with the same version number but different patches look identical. "
    "Without NCCL_DEBUG=VERSION the log of a job that hangs in setup looks like that of a broken "
    "network.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="nccl-version",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="the loaded NCCL is not the expected one",
            patterns=(
                r"undefined symbol: nccl\w+|Mismatched NCCL version|NCCL version mismatch",
                r"symbol lookup error.{0,80}nccl|libnccl\.so[.\d]*: cannot open shared object",
                "NCCL library version .{0,40}(?:differ|mismatch)|compiled with NCCL .{0,60}but",
            ),
            examples=(
                "ImportError: libtorch_cuda.so: undefined symbol: ncclCommWindowRegister",
                (
                    "ImportError: libnccl.so.2: cannot open shared object file: No such file "
                    "or directory"
                ),
            ),
        ),
    ),
    remedies=(
        automatic(
            "Print the NCCL libraries that the processes have loaded, on every host.",
            "grep -ho '/[^ ]*libnccl[^ ]*' /proc/*/maps 2>/dev/null | sort | uniq -c",
        ),
        disruptive(
            "Start without the other library on the path, so that torch's own package is loaded.",
            "env -u LD_PRELOAD -u LD_LIBRARY_PATH holdfast run SCRIPT",
        ),
        by_hand(
            "Use one image on all hosts, with torch and the nvidia-nccl package that torch pins."
        ),
    ),
    sources=(
        "NVIDIA NCCL user guide: Troubleshooting",
        "torch 2.13.0 pins nvidia-nccl-cu13 2.29.7",
    ),
)
