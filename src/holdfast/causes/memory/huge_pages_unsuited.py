"""MEM007 huge-pages-unsuited."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

HUGE_PAGES_UNSUITED = Cause(
    code="MEM007",
    name="huge-pages-unsuited",
    summary="Memory is reserved as unused huge pages, or the kernel stalls programs to create "
    "some.",
    what_happens="Reserved huge pages (vm.nr_hugepages) are unavailable for other uses. With "
    "transparent huge pages and `defrag` set to `always`, a page fault may wait for milliseconds "
    "until the kernel has compacted memory, whenever a tensor is allocated.",
    shows_before="HugePages_Free large in /proc/meminfo; `[always]` in "
    "/sys/kernel/mm/transparent_hugepage/defrag.",
    shows_during="Less memory is available than the sum of its uses explains; compact_stall of "
    "/proc/vmstat grows.",
    shows_after="Out of memory on a host that seems to have enough; late steps on one host "
    "without a reason.",
    known_misses="Some programs (DPDK, databases, Gaudi's driver) reserve huge pages and use them "
    "later.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        by_hand("Release the reserved pages.", "sysctl -w vm.nr_hugepages=0"),
        by_hand(
            "Let only programs that request huge pages wait for them.",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
        ),
    ),
    sources=(
        "Linux: Documentation/admin-guide/mm/transhuge.rst",
        "Linux: Documentation/admin-guide/mm/hugetlbpage.rst",
    ),
)
