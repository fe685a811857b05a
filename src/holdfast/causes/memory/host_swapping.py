"""MEM006 host-swapping."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

HOST_SWAPPING = Cause(
    code="MEM006",
    name="host-swapping",
    summary="The host swaps memory to disk, or processes wait for memory.",
    what_happens="Reading a swapped page from disk is about a thousand times slower than memory. "
    "A rank that touches one is late, and every other rank waits for it in the next collective.",
    shows_before="Much of SwapTotal in use, or `some` in /proc/pressure/memory above a few "
    "percent.",
    shows_during="Step times with a long tail on one host; its ranks in state D; `si` and `so` of "
    "vmstat not 0.",
    shows_after="A straggler, or a watchdog timeout of the others, with nothing in the log of the "
    "late rank.",
    known_misses="Old pages in swap that are never touched again do no harm: only the pressure "
    "shows that processes wait, and kernels before 4.20 do not measure it.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Check whether pages are being moved now.", "vmstat 1 5; cat /proc/pressure/memory"
        ),
        by_hand("End what fills the memory, or train with fewer loader workers."),
        by_hand("Move everything back into memory, if it fits.", "swapoff -a && swapon -a"),
    ),
    sources=("Linux: Documentation/accounting/psi.rst", "proc(5), /proc/swaps"),
)
