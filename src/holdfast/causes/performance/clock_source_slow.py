"""PERF008 clock-source-slow."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

CLOCK_SOURCE_SLOW = Cause(
    code="PERF008",
    name="clock-source-slow",
    summary="The kernel reads the time from a slow device.",
    what_happens="Normally a program reads the CPU's own counter without entering the kernel, in "
    "about 20 ns. If the kernel found that counter unreliable, it reads a device (hpet, acpi_pm) "
    "in a system call that takes 1 to 5 us, and all readers wait for each other.",
    shows_before="`hpet`, `acpi_pm` or `jiffies` in "
    "/sys/devices/system/clocksource/clocksource0/current_clocksource; `Marking clocksource 'tsc' "
    "as unstable` in the kernel log.",
    shows_during="Much kernel time in clock_gettime; profilers, recorders and busy polling are "
    "slow.",
    shows_after="One host is slower than the others by a few percent, without an error.",
    known_misses="A virtual machine's source (kvm-clock, Hyper-V's page) is fast and not reported.",
    evidence_sources=(EvidenceSource.HOST,),
    remedies=(
        automatic(
            "Find out why the kernel stopped using the CPU's counter.",
            "dmesg | grep -iE 'clocksource|tsc'",
        ),
        by_hand(
            "Select it again, if the other hosts use it.",
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
    ),
    sources=("Linux: Documentation/virt/kvm/x86/timekeeping.rst", "vdso(7)"),
)
